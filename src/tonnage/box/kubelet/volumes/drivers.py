"""Registered CSI drivers of a node: written by plugin registration, read by the mounters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import NodeInfo
from tonnage.errors import NotFound


@dataclass(frozen=True)
class RegisteredDriver:
    """A registered driver. staging, multi_writer, mount_group: its node capabilities; version: of CSI."""

    name: str
    client: CsiClient
    info: NodeInfo
    version: tuple[int, ...] = (1, 0, 0)
    staging: bool = False
    multi_writer: bool = False
    mount_group: bool = False


class RegisteredDrivers:
    """Registered drivers by name."""

    def __init__(self) -> None:
        self._drivers: dict[str, RegisteredDriver] = {}
        self._told: list[Callable[[str], None]] = []

    def get(self, name: str) -> RegisteredDriver:
        """The driver of that name. Raises NotFound in the words of Kubernetes."""
        driver = self._drivers.get(name)
        if driver is None:
            raise NotFound(f"driver name {name} not found in the list of registered CSI drivers")
        return driver

    def find(self, name: str) -> RegisteredDriver | None:
        """The driver of that name, if it is registered."""
        return self._drivers.get(name)

    def names(self) -> list[str]:
        """All registered names."""
        return list(self._drivers)

    def on_change(self, told: Callable[[str], None]) -> None:
        """Call the function with a driver's name after each registration and deregistration."""
        self._told.append(told)

    def put(self, driver: RegisteredDriver) -> None:
        """Register; the driver that had the name is replaced."""
        self._drivers[driver.name] = driver
        self._tell(driver.name)

    def remove(self, name: str) -> None:
        """Deregister; an unknown name is ignored."""
        if self._drivers.pop(name, None) is not None:
            self._tell(name)

    def _tell(self, name: str) -> None:
        for told in self._told:
            told(name)
