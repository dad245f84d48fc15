"""A volume group in memory: LVM itself runs in the guests of tests/vm only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.storage.pools.lvm.group import Group

from tonnage.base.aio.clock import RealClock
from tonnage.host import dm, lvm
from tonnage.storage.pools.lvm import table
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.thin_pool import LvmLimits


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Group:
    made = Group()
    monkeypatch.setattr(table, "LOCKS", tmp_path / "locks")  # those of the machine may be another run's
    monkeypatch.setattr(lvm, "read", made.read)
    monkeypatch.setattr(lvm, "lvm", made.run)
    monkeypatch.setattr(lvm, "device", lambda _group, lv: made.devices.get(lv))
    monkeypatch.setattr(lvm, "suspended", lambda _group: made.suspended)
    monkeypatch.setattr(dm, "status", lambda _name: None)
    return made


@pytest.fixture
def backend(group: Group) -> Iterator[LvmBackend]:
    """A back end over that group, open."""
    made = LvmBackend("p", "tonnage-unit-test", LvmLimits(), clock=RealClock())
    made.name = "p"
    made.open()
    yield made
    made.close()


@pytest.fixture
def again(group: Group, backend: LvmBackend) -> Callable[[], LvmBackend]:
    """Opens the group anew, as the next process does."""

    def open_again() -> LvmBackend:
        backend.close()
        backend.open()
        return backend

    return open_again
