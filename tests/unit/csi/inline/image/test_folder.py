"""Images of a folder: what is put there is found at once, what changes is loaded again, what is damaged stops nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tonnage.base.errors import NotFoundError, UnavailableError
from tonnage.csi.inline.image.folder import ImageFolder
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.manifest import Platform
from tonnage.storage.images.store import ImageStore
from tonnage.storage.registry.pulls import PulledImage
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
ONE, TWO = (LayerTar().add("a", text).data() for text in (b"one", b"two"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ImageFolder]:
    (tmp_path / "images").mkdir()
    found = ImageFolder(tmp_path / "images", ImageStore(tmp_path / "store"))
    yield found
    asyncio.run(found.close())


def pull(folder: ImageFolder, name: str, platform: Platform | None = None) -> PulledImage:
    return asyncio.run(folder.pull(reference.parse(name), platform or manifest.machine(), {}))


def put(folder: ImageFolder, file: str, layer: bytes, name: str) -> str:
    """Put an archive into the folder, as a program that writes it whole does; the digest of its manifest."""
    (folder.path / "new").write_bytes(made.archive(made.layout([layer], name=name)))
    os.rename(folder.path / "new", folder.path / file)
    pulled = pull(folder, name)
    return pulled.report.rpartition(": ")[2]


def content(folder: ImageFolder, name: str) -> bytes:
    record = folder.store.find(name)
    assert record is not None
    return (folder.store.layer(record.layers[0]) / "a").read_bytes()


def test_an_archive_that_is_put_there_is_found_and_a_new_version_of_it(folder: ImageFolder) -> None:
    with pytest.raises(NotFoundError, match="app:1: it is not in"):
        pull(folder, "app:1")
    digest = put(folder, "a.tar", ONE, "app:1")
    assert content(folder, "app:1") == b"one"
    assert pull(folder, "app:1").report == ""
    assert pull(folder, f"app@{digest}").name == "docker.io/library/app:1"
    put(folder, "a.tar", TWO, "app:1")
    assert content(folder, "app:1") == b"two"
    folder.store.remove("app:1")
    assert pull(folder, "app:1").report
    os.unlink(folder.path / "a.tar")
    with pytest.raises(NotFoundError):
        pull(folder, "app:1")


def test_layouts_are_found_and_the_folder_may_be_one(folder: ImageFolder) -> None:
    made.write(folder.path / "layout", made.layout([ONE], name="app:1"))
    made.write(folder.path, made.layout([TWO], name="app:2"))
    assert pull(folder, "app:1").name == "docker.io/library/app:1"
    assert pull(folder, "app:2").name == "docker.io/library/app:2"


def test_a_damaged_archive_stops_no_other_and_is_tried_again_when_it_changes(folder: ImageFolder) -> None:
    whole = made.archive(made.layout([ONE], name="app:1"))
    (folder.path / "a.tar").write_bytes(whole[:1000])
    (folder.path / "b.tar").symlink_to("/nonexistent")
    (folder.path / "c.txt").write_bytes(whole)
    put(folder, "z.tar", TWO, "other:1")
    with pytest.raises(NotFoundError):
        pull(folder, "app:1")
    with (folder.path / "a.tar").open("ab") as file:
        file.write(whole[1000:])
    assert pull(folder, "app:1").report


def test_what_is_not_there_or_takes_too_long_is_said(folder: ImageFolder) -> None:
    put(folder, "a.tar", ONE, "app:1")
    with pytest.raises(NotFoundError, match="this machine's platform only"):
        pull(folder, "app:1", Platform("mips", "linux"))
    folder.store.remove("app:1")

    async def twice() -> None:
        folder.patience = 0.0
        with pytest.raises(UnavailableError, match="is being loaded from"):
            await folder.pull(reference.parse("app:1"), manifest.machine(), {})
        folder.patience = 60.0
        assert (await folder.pull(reference.parse("app:1"), manifest.machine(), {})).report  # it went on

    asyncio.run(twice())
