"""LVM on persistent memory: which namespaces are its own, and what it offers."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.host import lvm, ndctl
from tonnage.host.ndctl import Ndctl, PmemNamespace, Region
from tonnage.storage.pools.pmem import volume_group
from tonnage.storage.pools.pmem.volume_group import FEATURES, LABEL, UNFINISHED, make_backend

GI = 1024**3


class Tool(Ndctl):
    """Records what is done."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def create(self, *args: object, label: str, size: int, **_: object) -> PmemNamespace:
        self.done.append(f"create {size}")
        return _namespace(label, "/dev/pmem0")

    def rename(self, namespace: PmemNamespace, label: str) -> None:
        self.done.append(f"rename {label}")

    def destroy(self, name: str) -> None:
        self.done.append(f"destroy {name}")

    def ready(self, namespace: PmemNamespace) -> PmemNamespace:
        return namespace


def _namespace(label: str, device: str = "") -> PmemNamespace:
    return PmemNamespace("namespace0.0", "region0", uuid4(), label, GI, "fsdax", device, GI)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[PmemNamespace]:
    found: list[PmemNamespace] = []
    region = Region("region0", 4 * GI, 7, 16 * 1024**2, 4 * GI, 4 * GI, labelled=True, readonly=False, slots=9)
    monkeypatch.setattr(ndctl, "namespaces", lambda _: found)
    monkeypatch.setattr(ndctl, "region", lambda _: region)
    monkeypatch.setattr(lvm, "read", lambda _: (_ for _ in ()).throw(UnavailableError("none")))
    return found


def test_free_memory_becomes_a_physical_volume(there: list[PmemNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(lvm, "lvm", lambda *words: commands.append(words))
    monkeypatch.setattr(volume_group, "wipe_ends", lambda device: commands.append(("wipe", device)))
    tool = Tool()
    there.append(_namespace(UNFINISHED))
    with pytest.raises(UnavailableError, match="no volume group g"):  # which our LVM does not make
        volume_group._prepare({"region0": tool}, "g", "pool p")
    assert tool.done == ["destroy namespace0.0", f"create {4 * GI}", f"rename {LABEL}"]
    assert commands == [("wipe", "/dev/pmem0"), ("vgcreate", "--yes", "--quiet", "g", "/dev/pmem0")]


def test_a_group_that_lvm_does_not_find_is_not_made_anew(there: list[PmemNamespace]) -> None:
    there.append(_namespace(LABEL, "/dev/pmem0"))
    tool = Tool()
    with pytest.raises(UnavailableError, match="is part of volume group g, which LVM does not find"):
        volume_group._prepare({"region0": tool}, "g", "pool p")
    assert tool.done == []


def test_what_memory_cannot_have() -> None:
    backend = make_backend("p")
    assert (backend.table.group, backend.features) == ("tonnage-p", FEATURES)
    assert {"iops", "bandwidth", "thin", "cowSize"} == set(FEATURES.rejected)
    assert not FEATURES.snapshots
