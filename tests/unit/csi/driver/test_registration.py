"""Plugin registration, both sides."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.registration import Registered, Registration, RegistrationClient
from tonnage.csi.errors import Code, CsiError

Refused = Callable[..., Awaitable[CsiError]]


async def test_a_kubelet_finds_and_tells_the_driver(driver: Driver, folder: Path, refused: Refused) -> None:
    socket, registry = folder / "csi.sock", folder / "registry"
    async with DriverEndpoint(driver, socket, registry=registry):
        found = registry / "csi.tonnage.dev-reg.sock"
        assert stat.S_IMODE(found.lstat().st_mode) == 0o600
        kubelet = RegistrationClient(found)
        assert await kubelet.get_info() == Registered("CSIPlugin", "csi.tonnage.dev", str(socket), ("1.0.0",))
        await kubelet.notify(registered=True)
    assert list(registry.iterdir()) == []
    await refused(kubelet.get_info(), Code.UNAVAILABLE)
    kubelet.close()


async def test_the_outcome_is_told(folder: Path) -> None:
    told: list[tuple[bool, str]] = []
    registration = Registration(
        "d.example.com", folder / "csi.sock", folder, on_status=lambda done, error: told.append((done, error))
    )
    await registration.start()
    assert registration.registered is None
    kubelet = RegistrationClient(folder / "d.example.com-reg.sock")
    long = "label collision " * 100
    await kubelet.notify(registered=False, error=long)
    await kubelet.notify(registered=True)
    assert told == [(False, long), (True, "")]
    assert registration.registered
    kubelet.close()
    await registration.stop()
    await registration.stop()
