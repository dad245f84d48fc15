"""What pods see of image volumes: real overlays of one unpacked copy, and writes that have a hard limit."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tonnage.csi.inline.base import FillRequest, InlinePod, Tree
from tonnage.csi.inline.image.source import ImageInline
from tonnage.host import mount
from tonnage.host.descriptor import opened
from tonnage.storage.images.store import ImageStore
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
]
BASE = LayerTar().folder("www").add("www/test", b"testing\n").add("www/old", b"x").data()
TOP = LayerTar().add("www/.wh.old").add("www/new", b"y").data()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    """A store that is on no overlay: those cannot be layers of others."""
    root = tmp_path / "disk"
    root.mkdir()
    mount.mount("tmpfs", root, "tmpfs", ("size=256m",))
    try:
        store = ImageStore(root / "store")
        archive = tmp_path / "image.tar"
        archive.write_bytes(made.archive(made.layout([BASE, TOP], name="kfox1111/misc:test")))
        store.load(archive)
        yield store
    finally:
        mount.umount(root)


def filled(store: ImageStore, folder: Path, **given: str) -> Tree:
    folder.mkdir()
    request = FillRequest(
        InlinePod("default", "nginx", "uid"), {"image": "kfox1111/misc:test", **given}, False, f"csi-{'0' * 64}", folder
    )
    found = asyncio.run(ImageInline([store]).fill(request))
    assert isinstance(found, Tree)
    return found


def show(tree: Tree, folder: Path, stack: ExitStack) -> Path:
    """As the framework does it: a volume of the asked size below the layers."""
    volume, target = folder / "volume", folder / "target"
    for path in (volume, target):
        path.mkdir()
        stack.callback(mount.umount, path)
    assert tree.writable is not None
    mount.mount("tmpfs", volume, "tmpfs", (f"size={tree.writable.size}",))
    for name in ("u", "w"):
        (volume / name).mkdir()
    fds = [stack.enter_context(opened(layer, _FOLDER)) for layer in tree.layers]
    upper, work = (stack.enter_context(opened(volume / name, _FOLDER)) for name in ("u", "w"))
    mount.overlay(target, fds, upper=upper, work=work, options=("nosuid", "nodev"))
    return target / tree.path


def test_two_pods_share_one_copy_and_write_apart(store: ImageStore, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (
            show(filled(store, tmp_path / name, size="1Mi", path="/www"), tmp_path / name, stack) for name in ("a", "b")
        )
        assert sorted(os.listdir(first)) == ["new", "test"]
        assert (first / "test").read_text() == "testing\n"
        (record,) = store.images()
        lower = store.layer(record.layers[0]) / "www/test"
        before = os.stat(lower)
        (first / "test").write_text("changed")
        os.unlink(first / "new")
        assert (second / "test").read_text() == "testing\n"
        assert (second / "new").read_text() == "y"
        assert lower.read_text() == "testing\n"
        assert os.stat(lower).st_mtime_ns == before.st_mtime_ns
        assert os.statvfs(first).f_blocks * os.statvfs(first).f_frsize == 1 << 20
        with pytest.raises(OSError, match="No space left"):
            (first / "large").write_bytes(b"1" * (2 << 20))
        (second / "large").write_bytes(b"1" * 1000)
