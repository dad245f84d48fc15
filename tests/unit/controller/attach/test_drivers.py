"""Connecting to the drivers: late ones, wrong ones, and several sockets of one driver."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import InvalidError
from tonnage.controller.attach.drivers import AttachEndpoint, AttachingDriver, AttachingDrivers
from tonnage.controller.config import parse_endpoints
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage_box.testing.network_driver import NETWORK_DRIVER, NetworkStorage, network_client
from tonnage_box.testing.wait import eventually


def _client(node: str) -> AttachEndpoint:
    return AttachEndpoint(Path(f"/{node or 'all'}.sock"), node)


async def _connected(drivers: AttachingDrivers, sockets: int) -> AttachingDriver:
    async def look() -> AttachingDriver | None:
        found = drivers.get(NETWORK_DRIVER)
        return found if found is not None and len(found.clients) == sockets else None

    found = await eventually(look)
    assert found is not None
    return found


async def test_a_nodes_own_socket_serves_its_volumes_and_any_those_of_a_node_that_is_gone() -> None:
    storage = NetworkStorage()
    made = {}

    def make(socket: Path) -> object:
        made[socket.stem] = network_client(storage, socket.stem)
        return made[socket.stem]

    drivers = AttachingDrivers([_client("n1"), _client("n2")], RealClock(), make_client=make)  # type: ignore[arg-type]
    tasks = Background("test")
    tasks.start(drivers.run())
    driver = await _connected(drivers, 2)
    assert driver.client("n2") is made["n2"]
    assert driver.client("gone") in made.values()
    assert drivers.is_complete
    await tasks.close()
    assert drivers.get(NETWORK_DRIVER) is None
    assert not drivers.is_complete, "the next run has to ask again"


async def test_a_driver_that_is_not_there_yet_is_asked_again() -> None:
    storage, failures = NetworkStorage(), 3

    class Late:
        """Its process starts later."""

        def __init__(self) -> None:
            self._inner, self.socket = network_client(storage), Path("/late.sock")

        async def probe(self) -> bool:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise CsiError(Code.UNAVAILABLE, "no such file")
            return True

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    drivers = AttachingDrivers([_client("")], RealClock(), make_client=lambda socket: Late())  # type: ignore[arg-type,return-value]
    tasks = Background("test")
    tasks.start(drivers.run())
    await _connected(drivers, 1)
    await tasks.close()
    assert failures == -1


async def test_a_second_socket_for_the_same_volumes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    storage = NetworkStorage()
    drivers = AttachingDrivers(
        [AttachEndpoint(Path("/a.sock")), AttachEndpoint(Path("/b.sock"))],
        RealClock(),
        make_client=lambda socket: network_client(storage),
    )
    tasks = Background("test")
    with caplog.at_level(logging.ERROR):
        tasks.start(drivers.run())
        await _connected(drivers, 1)

        async def told() -> bool:
            return f"another endpoint serves driver {NETWORK_DRIVER} already" in caplog.text

        await eventually(told)
    await tasks.close()


def test_endpoints_are_checked() -> None:
    assert parse_endpoints(["unix:///run/a.sock", "unix:///run/a.sock"]) == [AttachEndpoint(Path("/run/a.sock"))]
    with pytest.raises(InvalidError, match="want a unix socket with an absolute path"):
        parse_endpoints(["a.sock"])


@pytest.mark.parametrize(
    ("driver", "finalizer"),
    [("csi.example.com", "external-attacher/csi-example-com"), ("a.", "external-attacher/a-X")],
)
def test_finalizers_are_those_of_external_attacher(driver: str, finalizer: str) -> None:
    assert names.attacher_finalizer(driver) == finalizer
