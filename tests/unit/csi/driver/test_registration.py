"""Plugin registration, both sides."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.registration import Registration
from tonnage.csi.errors import Code, CsiError
from tonnage_box.kubelet.registration import Registered, RegistrationClient

Rejected = Callable[..., Awaitable[CsiError]]


async def test_a_kubelet_finds_and_tells_the_driver(driver: Driver, folder: Path, rejected: Rejected) -> None:
    socket, registry = folder / "csi.sock", folder / "registry"
    async with DriverEndpoint(driver, socket, registry=registry):
        found = registry / "csi.tonnage.dev-reg.sock"
        assert stat.S_IMODE(found.lstat().st_mode) == 0o600
        kubelet = RegistrationClient(found)
        assert await kubelet.get_info() == Registered("CSIPlugin", "csi.tonnage.dev", str(socket), ("1.0.0",))
        await kubelet.notify(registered=True)
    assert list(registry.iterdir()) == []
    await rejected(kubelet.get_info(), Code.UNAVAILABLE)
    kubelet.close()


async def test_the_outcome_is_told(folder: Path) -> None:
    registration = Registration("d.example.com", folder / "csi.sock", folder)
    await registration.start()
    assert registration.registered is None, "before the kubelet has answered"
    kubelet = RegistrationClient(folder / "d.example.com-reg.sock")
    long = "label collision " * 100

    def status() -> tuple[bool | None, str]:
        return registration.registered, registration.error

    told = []
    for registered, error in ((False, long), (True, "")):
        await kubelet.notify(registered=registered, error=error)
        told.append(status())
    assert told == [(False, long), (True, "")]
    kubelet.close()
    await registration.stop()
    await registration.stop()
