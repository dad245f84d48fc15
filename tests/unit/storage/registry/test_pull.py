"""Pulls into a store: only what it lacks, whole or not at all, continued after a kill."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.content.server import Files, served
from tests.unit.storage.killed import Killed, killing
from tests.unit.storage.registry.images import asked, layer_paths, put, put_layout

from tonnage.base.errors import ExhaustedError, InvalidError, NotFoundError, UnavailableError
from tonnage.storage.content.access import Progress, StoppedError
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.store import ImageRecord, ImageStore
from tonnage.storage.registry import pull as pulling
from tonnage.storage.registry.client import RegistryAccess, RegistryClient, parse_access
from tonnage.storage.registry.pull import pull
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
BASE, TOP, OTHER = (LayerTar().add(name, name.encode() * 50_000).data() for name in ("a", "b", "c"))


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files()) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def client(files: Files, name: str) -> RegistryClient:
    found = parse_access((f"http://localhost:{files.port}",))
    access = RegistryAccess(found.hosts, found.plain, sleep=lambda seconds: None)
    return RegistryClient(reference.parse(f"localhost:{files.port}/{name}"), access, Progress(name))


def run(files: Files, store: ImageStore, name: str = "app:1") -> ImageRecord:
    found = client(files, name)
    return pull(found, found.resolve(manifest.machine()), store).record


@pytest.mark.parametrize("compressed", [True, False])
def test_an_image_is_pulled_once(files: Files, store: ImageStore, compressed: bool) -> None:
    digest = put(files, "app", "1", BASE, TOP, compressed=compressed)
    record = run(files, store)
    assert (record.digest, record.is_pulled) == (digest, True)
    assert record.name == f"localhost:{files.port}/app:1"
    assert (store.layer(record.layers[1]) / "b").read_bytes() == b"b" * 50_000
    assert os.listdir(store.path / "pulls") == os.listdir(store.path / "uses") == []
    files.seen.clear()
    assert run(files, store) == record
    assert len(asked(files, "/blobs/")) == 1  # the configuration


def test_an_artifact_is_pulled(files: Files, store: ImageStore) -> None:
    put_layout(files, "model", "1", made.artifact({"model.bin": b"12345"}, name="model:1"))
    record = run(files, store, "model:1")
    assert (store.layer(record.layers[0]) / "model.bin").read_bytes() == b"12345"


def test_layers_that_are_here_are_not_downloaded(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE, TOP)
    first = run(files, store)
    put(files, "app", "2", BASE, OTHER)
    files.seen.clear()
    second = run(files, store, "app:2")
    assert second.layers[0] == first.layers[0]
    assert len(asked(files, "/blobs/")) == 2  # the configuration and one layer
    put(files, "app", "1", BASE)
    assert run(files, store).layers == first.layers[:1]


def test_a_pull_that_broke_off_continues_with_whole_layers(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE, TOP)
    paths = layer_paths(files)
    last = files.files.pop(paths[1])
    with pytest.raises(InvalidError, match="404"):
        run(files, store)
    assert store.images() == []
    files.files[paths[1]] = last
    files.seen.clear()
    assert len(run(files, store).layers) == 2
    assert asked(files, paths[0]) == []
    assert os.listdir(store.path / "pulls") == []


def test_a_wrong_layer_never_enters_the_store(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE)
    (path,) = layer_paths(files)
    files.files[path] = files.files[path][:-1] + b"x"
    with pytest.raises(InvalidError, match="it is damaged"):
        run(files, store)
    assert store.images() == []
    assert os.listdir(store.path / "layers") == []


def test_a_wrong_diff_id_is_rejected(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE, TOP)
    put(files, "app", "2", TOP, BASE)
    # The configuration of one image with the layers of the other, both whole.
    one, two = (json.loads(files.files[f"/v2/app/manifests/{tag}"]) for tag in ("1", "2"))
    files.files["/v2/app/manifests/mixed"] = json.dumps({**one, "config": two["config"]}).encode()
    with pytest.raises(InvalidError, match=r"want sha256:.*: damaged"):
        run(files, store, "app:mixed")
    assert store.images() == []


def test_a_stopped_pull_ends_and_can_be_continued(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE)
    found = client(files, "app:1")
    remote = found.resolve(manifest.machine())
    found.progress.halt()
    with pytest.raises(StoppedError):
        pull(found, remote, store)
    assert run(files, store).is_pulled


def test_an_image_that_does_not_fit_is_rejected_before_the_first_layer(
    files: Files, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(files, "app", "1", BASE)
    monkeypatch.setattr(pulling, "_free", lambda store: 100)
    with pytest.raises(ExhaustedError, match=r"it needs \d+, image store .* has 100 free: remove images"):
        run(files, store)
    assert asked(files, layer_paths(files)[0]) == []


def test_unused_images_are_evicted_when_the_disk_is_nearly_full(
    files: Files, store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {"old": BASE, "used": TOP, "pinned": OTHER, "young": LayerTar().add("d", b"4").data()}
    for name, layer in images.items():
        put(files, name, "1", layer)
        record = run(files, store, f"{name}:1")
        if name == "pinned":
            assert not store.pin(record.name).is_pulled
        if name == "used":
            store.use(record.name, str(tmp_path))
        if name != "young":
            for path in (store.path / "images").iterdir():
                os.utime(path, (0, 0))
    put(files, "new", "1", LayerTar().add("e", b"5").data())
    monkeypatch.setattr(pulling, "_used", lambda store: 0.86)
    run(files, store, "new:1")
    left = {record.name.rpartition("/")[2] for record in store.images()}
    assert left == {"used:1", "pinned:1", "young:1", "new:1"}
    assert len(os.listdir(store.path / "layers")) == 4
    monkeypatch.setattr(pulling, "_used", lambda store: 0.84)
    assert pulling.evict(store, lambda: pulling._used(store) > pulling.HIGH, lambda: True) == []


def test_eviction_ends_when_there_is_enough_free(files: Files, store: ImageStore) -> None:
    for number, layer in enumerate((BASE, TOP, OTHER)):
        put(files, "app", str(number), layer)
        run(files, store, f"app:{number}")
    for age, name in enumerate(("app:1", "app:0", "app:2")):
        record = store.find(f"localhost:{files.port}/{name}")
        assert record is not None
        os.utime(store.path / "images" / _file(store, record), (age, age))
    wanted = iter((True, True, False))
    evicted = store.evict(lambda: next(wanted), now=1000.0)
    assert [record.name.rpartition("/")[2] for record in evicted] == ["app:1", "app:0"]
    with pytest.raises(NotFoundError):
        store.pin(f"localhost:{files.port}/app:1")


def _file(store: ImageStore, record: ImageRecord) -> str:
    (found,) = (
        path.name for path in (store.path / "images").iterdir() if json.loads(path.read_bytes())["name"] == record.name
    )
    return found


def test_a_damaged_record_stops_the_eviction(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE)
    run(files, store)
    (store.path / "images" / "bad.json").write_bytes(b"")
    assert store.evict(lambda: True, now=1e12) == []
    assert len(store.images()) == 1


def test_pulls_that_were_left_long_ago_are_removed(files: Files, store: ImageStore) -> None:
    put(files, "app", "1", BASE)
    found = client(files, "app:1")
    remote = found.resolve(manifest.machine())
    files.status = [500]
    with pytest.raises(UnavailableError):
        pull(found, remote, store)
    (left,) = (store.path / "pulls").iterdir()
    put(files, "other", "1", TOP)
    run(files, store, "other:1")
    assert left.is_dir()
    os.utime(left, (0, 0))
    with store.pulling(f"sha256:{left.name}", lambda: None):
        os.utime(left, (0, 0))
        with pytest.raises(NotFoundError):
            store.remove("none")
        assert left.is_dir()  # it is locked
    assert not left.exists()


def test_the_sizes_of_a_store(files: Files, store: ImageStore, tmp_path: Path) -> None:
    put(files, "app", "1", BASE, TOP)
    record = run(files, store)
    assert store.sizes() == (2, 100_000, 100_000)
    store.use(record.name, str(tmp_path))
    assert store.sizes() == (2, 100_000, 0)


@pytest.mark.slow
def test_a_pull_may_be_killed_at_any_step(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rename, unlink, sync and folder is once the last thing that the process does."""
    put(files, "app", "1", BASE, TOP)
    found = client(files, "app:1")
    remote = found.resolve(manifest.machine())
    for count in range(1000):
        store = ImageStore(tmp_path / f"store{count}")
        with monkeypatch.context() as patched:
            left = [count]
            for name in ("rename", "unlink", "fsync", "mkdir"):
                patched.setattr(os, name, killing(getattr(os, name), left))
            try:
                pull(client(files, "app:1"), remote, store)
                is_finished = True
            except Killed:
                is_finished = False
        for record in store.images():
            assert all(store.layer(chain).is_dir() for chain in record.layers)
        record = pull(client(files, "app:1"), remote, ImageStore(store.path)).record
        assert (store.layer(record.layers[1]) / "b").stat().st_size == 50_000
        with store.pulling(remote.digest, lambda: None):
            pass
        assert os.listdir(store.path / "pulls") == []
        if is_finished:
            assert count > 20
            return
    raise AssertionError
