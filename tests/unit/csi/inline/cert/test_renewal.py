"""A pod's certificate over a real tmpfs: an issuer that is away when it is to be renewed, and its return."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.csi.inline.cert.makers import ours
from tests.unit.csi.inline.cert.makers import pod as asking_pod
from tests.unit.csi.inline.cert.test_source import AUTHORITY, ManualIssuer
from tests.unit.csi.inline.world import World

from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.cert.attributes import OURS
from tonnage.csi.inline.cert.authority import read_certificates
from tonnage.csi.inline.cert.source import CertificateSource
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore


class ManualClock:
    """A wall clock that a test moves, with the monotonic clock."""

    def __init__(self, issuer: ManualIssuer) -> None:
        self._issuer = issuer

    def time(self) -> float:
        return self._issuer.now

    def monotonic(self) -> float:
        return self._issuer.now

    async def sleep(self, seconds: float) -> None:
        """Not at all."""


@pytest.fixture
def issuer() -> ManualIssuer:
    return ManualIssuer()


@pytest.fixture
def driver(world: World, issuer: ManualIssuer) -> InlineDriver:
    clock = ManualClock(issuer)
    source = CertificateSource(OURS, lambda reference: issuer, clock.time)

    def emit(_pod: object, _type: str, reason: str, message: str) -> None:
        world.events.append((reason, message))

    return InlineDriver("cert.test", source, MemoryStore(world.folder / "mem", 2 << 20), events=emit, clock=clock)


def shown(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")}


async def test_an_issuer_that_is_away_at_renewal(world: World, driver: InlineDriver, issuer: ManualIssuer) -> None:
    await driver.start()
    request = world.request(pod=asking_pod(), attributes=ours(duration="1h"), read_only=True)
    await driver.publish(request)
    before, asked = shown(world.target()), len(issuer.names)
    issuer.now += 2400
    issuer.failure = UnavailableError("issuer ca-issuer: waiting: away")
    for seconds in (0, 1, 2, 300, 1200):  # past its end too
        issuer.now += seconds
        await driver._renew("csi-1")
        await driver.publish(request)  # never an error: the pod has its files
        assert shown(world.target()) == before
        reported = [reason for reason, _ in world.events]
        assert reported == ([] if seconds < 1200 else ["InlineStale"]), "after nine tenths of its life, once"
        assert bool((await driver.usage("csi-1", str(world.target()))).problem) == bool(reported)
    assert len(set(issuer.names[asked:])) == 1, "one request, however often it is looked for"
    usage = await driver.usage("csi-1", str(world.target()))
    assert usage.problem == "issuer ca-issuer: waiting: away"
    issuer.failure = None
    await driver._renew("csi-1")
    after = shown(world.target())
    assert after["tls.key"] != before["tls.key"]
    leaf = read_certificates(after["tls.crt"])[0]
    leaf.verify_directly_issued_by(AUTHORITY.chain[0])
    assert leaf.not_valid_after_utc.timestamp() == issuer.now + 3600
    assert (await driver.usage("csi-1", str(world.target()))).problem == ""
    assert [reason for reason, _ in world.events] == ["InlineStale", "InlineRenewed"]
    assert not any("PRIVATE" in message for _, message in world.events)
    await driver.unpublish("csi-1", str(world.target()))
    assert world.left() == []
    await driver.stop()


async def test_an_issuer_that_is_away_at_the_start(world: World, driver: InlineDriver, issuer: ManualIssuer) -> None:
    await driver.start()
    request = world.request(pod=asking_pod(), attributes=ours(), read_only=True)
    issuer.failure = UnavailableError("issuer ca-issuer: waiting: away")
    for _ in range(3):
        with pytest.raises(UnavailableError, match="waiting: away"):
            await driver.publish(request)
        assert not world.target().exists() or list(world.target().iterdir()) == []
    issuer.failure = None
    await driver.publish(request)
    assert shown(world.target())["ca.crt"] == AUTHORITY.pem
    assert len(set(issuer.names)) == 1
    await driver.unpublish("csi-1", str(world.target()))
    await driver.stop()
