"""Records and files of inline volumes."""

from pathlib import Path

from tonnage.csi.inline.base import Tree, WritableLayer
from tonnage.csi.inline.memory import InlineRecord, MemoryStore, folder_name
from tonnage.csi.inline.volume import InlinePhase


def test_a_folders_name_is_safe_and_its_own() -> None:
    handles = ["csi-1", "../x", "", "a/b", "h-1", "x" * 300, "image:tag@/t"]
    names = [folder_name(handle) for handle in handles]
    assert len(set(names)) == len(handles)
    assert all(name and "/" not in name and not name.startswith(".") and len(name) <= 128 for name in names)


def test_a_record_survives_a_damaged_one_is_left_alone_and_a_leftover_is_removed(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    tree = Tree((Path("/a"), Path("/b")), "sub", WritableLayer(1 << 20, "fast", {"erase": "no"}))
    record = InlineRecord("csi-1", "/t", "ns", "pod", "uid", InlinePhase.ASKED).with_filled(tree)
    store.save(record)
    store.save(InlineRecord("csi-2", "/t2", "ns", "pod", "uid", InlinePhase.SHOWN))
    (tmp_path / "csi-2" / "record").write_text("{")
    (tmp_path / "csi-3" / "data").mkdir(parents=True)
    assert list(store.records()) == [record]
    assert record.tree() == tree
    assert not (tmp_path / "csi-3").exists()
    assert (tmp_path / "csi-2" / "record").read_text() == "{"
    store.remove("csi-2")
    store.remove("csi-1")
    store.remove("csi-1")
    assert list(tmp_path.iterdir()) == []
