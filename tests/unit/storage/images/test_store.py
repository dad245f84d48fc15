"""The image store."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from tests.unit.storage.killed import Killed, killing

from tonnage.base.errors import InvalidError, NotFoundError, TonnageError
from tonnage.storage.images.store import ImageStore, is_store
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
BASE = LayerTar().folder("etc").add("etc/a", b"one").data()
TOP = LayerTar().add("etc/b", b"two").add("etc/.wh.a").data()
OTHER = LayerTar().add("etc/c", b"three").data()


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def put(tmp_path: Path, name: str, *layers: bytes, file: str = "a.tar") -> Path:
    path = tmp_path / file
    path.write_bytes(made.archive(made.layout(layers, name=f"{name}:latest", Entrypoint=["/bin/x"])))
    return path


def layers_of(store: ImageStore) -> set[str]:
    return set(os.listdir(store.path / "layers"))


def leftovers(store: ImageStore) -> list[str]:
    return [name for name in os.listdir(store.path) if name.startswith("new-")]


def test_load_find_and_remove(store: ImageStore, tmp_path: Path) -> None:
    (record,) = store.load(put(tmp_path, "busybox", BASE, TOP))
    assert record.name == "docker.io/library/busybox:latest"
    assert record.config.entrypoint == ["/bin/x"]
    assert record.image_id == f"docker.io/library/busybox@{record.digest}"
    assert store.find("busybox") == store.find("docker.io/library/busybox:latest") == record
    assert store.find(f"busybox@{record.digest}") == record
    assert store.find("busybox:2") is None
    assert store.find(f"other@{record.digest}") is None
    assert (store.layer(record.layers[1]) / "etc/b").read_text() == "two"
    assert layers_of(store) == set(record.layers)
    store.remove("busybox")
    assert store.images() == []
    assert not layers_of(store)
    assert not os.listdir(store.path / "blobs/sha256")
    with pytest.raises(NotFoundError, match="is not in store"):
        store.remove("busybox")


def test_layers_are_unpacked_once_and_shared(store: ImageStore, tmp_path: Path) -> None:
    (first,) = store.load(put(tmp_path, "one", BASE, TOP))
    inode = os.stat(store.layer(first.layers[0]) / "etc/a").st_ino
    (second,) = store.load(put(tmp_path, "two", BASE, OTHER))
    assert second.layers[0] == first.layers[0]
    assert os.stat(store.layer(first.layers[0]) / "etc/a").st_ino == inode
    store.remove("one")
    assert layers_of(store) == set(second.layers)
    assert store.load(put(tmp_path, "two", BASE, OTHER)) == [second]


def test_a_layer_belongs_to_those_below_it(store: ImageStore, tmp_path: Path) -> None:
    (first,) = store.load(put(tmp_path, "one", BASE, TOP))
    (second,) = store.load(put(tmp_path, "two", OTHER, TOP))
    assert first.layers[1] != second.layers[1]


def test_a_new_image_of_a_name_replaces_the_old(store: ImageStore, tmp_path: Path) -> None:
    (old,) = store.load(put(tmp_path, "one", BASE, TOP))
    (new,) = store.load(put(tmp_path, "one", BASE, OTHER))
    assert store.images() == [new]
    assert old.layers[1] not in layers_of(store)


def test_layers_in_use_stay(store: ImageStore, tmp_path: Path) -> None:
    (record,) = store.load(put(tmp_path, "one", BASE))
    folder = tmp_path / "container"
    folder.mkdir()
    assert store.use("one", str(folder)) == record
    assert store.uses() == {record.layers[-1]: 1}
    store.remove("one")
    assert layers_of(store) == set(record.layers)
    folder.rmdir()  # as a cleanup that knows nothing of the store
    store.load(put(tmp_path, "two", OTHER))
    assert record.layers[0] not in layers_of(store)
    assert not os.listdir(store.path / "uses")


def test_a_released_use_protects_nothing(store: ImageStore, tmp_path: Path) -> None:
    store.load(put(tmp_path, "one", BASE))
    store.use("one", str(tmp_path))
    store.release(str(tmp_path))
    store.release(str(tmp_path))
    store.remove("one")
    assert not layers_of(store)


def test_there_is_nothing_in_a_store_that_does_not_exist(store: ImageStore, tmp_path: Path) -> None:
    assert store.images() == []
    assert store.use("busybox", str(tmp_path)) is None
    assert not store.path.exists()


def test_a_name_is_for_one_image(store: ImageStore, tmp_path: Path) -> None:
    (record,) = store.load(put(tmp_path, "one", BASE), "my/name:1")
    assert record.name == "docker.io/my/name:1"
    two = made.saved([BASE])
    listed = json.loads(two["manifest.json"])
    two["manifest.json"] = json.dumps(listed * 2).encode()
    with pytest.raises(InvalidError, match="it has 2 images"):
        store.load(made.write(tmp_path / "two", two), "x")


def test_other_folders_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(InvalidError, match="is not an image store"):
        ImageStore(tmp_path).load(put(tmp_path, "one", BASE))
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "lock", "precious"]


def test_a_store_of_another_format_is_rejected(store: ImageStore, tmp_path: Path) -> None:
    store.load(put(tmp_path, "one", BASE))
    (store.path / "tonnage-images.json").write_text('{"format":2}')
    assert is_store(store.path)
    with pytest.raises(InvalidError, match="has format 2"):
        store.images()


def test_what_a_kill_left_is_removed(store: ImageStore, tmp_path: Path) -> None:
    store.load(put(tmp_path, "one", BASE))
    (store.path / "new-1" / "root" / "deep").mkdir(parents=True)
    (store.path / "new-2").write_text("half")
    store.load(put(tmp_path, "one", BASE))
    assert leftovers(store) == []


def test_a_bad_layer_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    bad = LayerTar().add("ok", b"1").add("../escape", b"2").data()
    with pytest.raises(InvalidError, match=r"has '\.\.'"):
        store.load(put(tmp_path, "bad", BASE, bad))
    assert store.images() == []
    assert leftovers(store) == []
    assert not layers_of(store)
    assert not (tmp_path / "escape").exists()


def test_files_of_an_artifact(store: ImageStore, tmp_path: Path) -> None:
    """As models and charts are pushed: files by their titles, and archives."""
    archive = tmp_path / "model"
    found = [made.artifact({"weights/model.bin": b"1" * 5000, "README": b"text"}, name=f"model:{tag}") for tag in "12"]
    for files in found:
        made.write(archive, files)
        (record,) = store.load(archive)
    assert len(layers_of(store)) == 2
    (first, second) = (store.layer(chain) for chain in record.layers)
    assert (first / "weights/model.bin").read_bytes() == b"1" * 5000
    assert (second / "README").read_text() == "text"
    assert os.stat(second / "README").st_mode & 0o777 == 0o644
    # The same bytes under another title are another layer.
    made.write(tmp_path / "other", made.artifact({"other": b"1" * 5000}, name="other:1"))
    (other,) = store.load(tmp_path / "other")
    assert os.listdir(store.layer(other.layers[0])) == ["other"]
    blob = next(path for path in (tmp_path / "other/blobs/sha256").iterdir() if path.stat().st_size == 5000)
    blob.write_bytes(b"2" * 5000)
    store.remove("other:1")
    with pytest.raises(InvalidError, match="it is damaged"):
        store.load(tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["load", "replace", "remove"])
def test_a_store_is_whole_after_a_kill_at_any_step(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rename, unlink and sync is once the last thing that the process does."""
    one, two = put(tmp_path, "one", BASE, TOP, file="1.tar"), put(tmp_path, "one", OTHER, file="2.tar")
    for count in range(1000):
        store = ImageStore(tmp_path / f"store{count}")
        if step != "load":
            store.load(one)
        before = {record.name: record.digest for record in store.images()}
        with monkeypatch.context() as patched:
            left = [count]
            for name in ("rename", "unlink", "fsync", "mkdir"):
                patched.setattr(os, name, killing(getattr(os, name), left))
            try:
                store.remove("one") if step == "remove" else store.load(two if step == "replace" else one)
                finished = True
            except Killed:
                finished = False
        check_whole(store, before)
        ImageStore(store.path).load(two)
        (record,) = store.images()
        assert layers_of(store) == set(record.layers)
        assert leftovers(store) == []
        if finished:
            assert count > 5
            return
    raise AssertionError


def check_whole(store: ImageStore, before: dict[str, str]) -> None:
    """Each name has all its layers, which have their record."""
    for record in store.images():
        for chain in record.layers:
            assert store.layer(chain).is_dir()
            msgspec.json.decode((store.path / "layers" / chain / "layer.json").read_bytes())
    assert len(store.images()) <= 1


def test_a_damaged_record_is_named_and_stops_no_other(store: ImageStore, tmp_path: Path) -> None:
    """What it uses is not known, so that nothing is removed until its image is loaded again."""
    archive = put(tmp_path, "one", BASE)
    store.load(archive)
    (path,) = (store.path / "images").iterdir()
    path.write_bytes(b"{")
    (other,) = store.load(put(tmp_path, "two", OTHER, file="2.tar"))
    assert store.images() == [other]
    (failure,) = store.damaged()
    assert str(path) in str(failure)
    with pytest.raises(TonnageError, match="load its image again"):
        store.find("one")
    store.remove("two")
    assert len(layers_of(store)) == 2
    (record,) = store.load(archive)
    assert (store.images(), store.damaged()) == ([record], [])
    assert layers_of(store) == set(record.layers)
