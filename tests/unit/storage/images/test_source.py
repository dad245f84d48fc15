"""Layouts and archives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import InvalidError, NotFoundError, TonnageError, UnsupportedError
from tonnage.storage.images import manifest, source
from tonnage.storage.images.source import ImageSource
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

LAYER = LayerTar().add("a", b"1").data()
OCI = "application/vnd.oci.image."


def images(path: Path) -> list[ImageSource]:
    with source.opened(path) as archive:
        found = archive.images(manifest.machine())
        for image in found:
            for layer in image.layers:
                archive.open(layer, "layer").finish()
        return found


def file(tmp_path: Path, files: dict[str, bytes], name: str = "some.tar") -> Path:
    path = tmp_path / name
    path.write_bytes(made.archive(files))
    return path


@pytest.mark.parametrize("name", ["web:1", "docker.io/library/web:1"])
def test_a_layout_in_a_folder_and_in_an_archive(tmp_path: Path, name: str) -> None:
    files = made.layout([LAYER], name=name)
    (in_folder,), (in_archive,) = images(made.write(tmp_path / "folder", files)), images(file(tmp_path, files))
    assert in_folder == in_archive
    assert in_folder.names == ("docker.io/library/web:1",)


def test_a_layout_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    files = made.layout([LAYER])
    files["index.json"] = files["index.json"].replace(b"org.opencontainers.image.ref.name", b"other")
    assert images(file(tmp_path, files, "My App.tar"))[0].names == ("docker.io/library/my-app:latest",)
    files = made.layout([LAYER], name="v2")
    assert images(file(tmp_path, files, "app.tar"))[0].names == ("docker.io/library/app:v2",)


def test_an_archive_of_docker_save(tmp_path: Path) -> None:
    (found,) = images(file(tmp_path, made.saved([LAYER, LAYER], name="web:1", Cmd=["x"])))
    assert found.names == ("docker.io/library/web:1",)
    assert found.is_saved
    assert len(found.layers) == 2


def test_layers_of_docker_save_may_be_symlinks_and_compressed(tmp_path: Path) -> None:
    import gzip

    files = made.saved([LAYER, LAYER])
    tar = LayerTar().symlink("1/layer.tar", "../0/layer.tar").add("0/layer.tar", gzip.compress(LAYER))
    for name in ("config.json", "manifest.json"):
        tar.add(name, files[name])
    (tmp_path / "a.tar").write_bytes(tar.data())
    (found,) = images(tmp_path / "a.tar")
    assert [layer.compression for layer in found.layers] == ["gzip", "gzip"]


def nested(depth: int, platforms: list[dict[str, str]] | None = None) -> dict[str, bytes]:
    """An image behind so many indexes."""
    files = made.layout([LAYER])
    (found,) = json.loads(files["index.json"])["manifests"]
    for number in range(depth):
        inner = [found] if number or not platforms else [{**found, "platform": one} for one in platforms]
        data = json.dumps({"schemaVersion": 2, "manifests": inner}).encode()
        files[f"blobs/sha256/{made.digest(data)[7:]}"] = data
        found = {"mediaType": f"{OCI}index.v1+json", "digest": made.digest(data), "size": len(data)}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [found]}).encode()
    return files


def test_indexes_in_indexes(tmp_path: Path) -> None:
    machine = manifest.machine()
    platforms = [{"os": "linux", "architecture": "none"}, {"os": "linux", "architecture": machine.architecture}]
    assert len(images(file(tmp_path, nested(4, platforms)))) == 1
    with pytest.raises(InvalidError, match="nested deeper than 4 levels"):
        images(file(tmp_path, nested(5)))
    with pytest.raises(NotFoundError, match="it has linux/none"):
        images(file(tmp_path, nested(1, platforms[:1])))


def changed(name: str, data: bytes | None) -> dict[str, bytes]:
    files = made.layout([LAYER])
    key = next(key for key in files if key.startswith(name))
    if data is None:
        del files[key]
    else:
        files[key] = data
    return files


def saved(**changes: Any) -> dict[str, bytes]:
    files = made.saved([LAYER])
    (listed,) = json.loads(files["manifest.json"])
    return {**files, "manifest.json": json.dumps([{**listed, **changes}]).encode()}


@pytest.mark.parametrize(
    ("files", "kind", "why"),
    [
        ({"readme": b"x"}, InvalidError, "neither an OCI layout"),
        (changed("oci-layout", b'{"imageLayoutVersion":"2.0.0"}'), UnsupportedError, "layout version '2.0.0'"),
        (changed("oci-layout", b"{}"), InvalidError, "cannot be read"),
        (changed("index.json", b"\0" * 100), InvalidError, "cannot be read"),
        (changed("index.json", b" " * (9 << 20)), InvalidError, "longer than"),
        (changed("index.json", b'{"manifests":[{}]}'), UnsupportedError, "is not an image"),
        (changed("blobs", b"damaged"), InvalidError, "size"),
        (changed("blobs", None), NotFoundError, "is missing: the image is not whole"),
        (saved(Config="none.json"), NotFoundError, "is missing"),
        (saved(Layers=["../../etc/passwd"]), TonnageError, "etc/passwd (is missing|cannot be opened)"),
        (saved(Layers=["0/layer.tar"] * 200), InvalidError, "200 layers"),
        (saved(Layers=["0/layer.tar"] * 2), InvalidError, "1 diff_ids for 2 layers"),
        (saved(RepoTags=["Not A Name"]), InvalidError, "invalid reference format"),
    ],
)
def test_bad_sources_are_rejected_by_name(
    tmp_path: Path, files: dict[str, bytes], kind: type[TonnageError], why: str
) -> None:
    with pytest.raises(kind, match=why):
        images(file(tmp_path, files))
    with pytest.raises(kind, match=why):
        images(made.write(tmp_path / "some", files))


def test_symlinks_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "layout", made.layout([LAYER]))
    (tmp_path / "outside").write_bytes((folder / "index.json").read_bytes())
    (folder / "index.json").unlink()
    (folder / "index.json").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidError, match="neither an OCI layout"):
        images(folder)


def test_what_is_no_file_does_not_hang(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "layout", made.layout([LAYER]))
    (folder / "oci-layout").unlink()
    os.mkfifo(folder / "oci-layout")
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(InvalidError, match="is not a file"):
        images(folder)
    with pytest.raises(InvalidError, match="neither a file nor a folder"):
        images(tmp_path / "pipe.tar")
    with pytest.raises(NotFoundError, match="no such file"):
        images(tmp_path / "none")


@pytest.mark.parametrize(
    "data", [b"", b"junk\n", bytes(100), b"root:x:0:0:root:/root:/bin/bash\n" * 40, b"\x7fELF" * 200]
)
def test_a_file_that_is_no_archive_is_called_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(InvalidError, match="it is no tar archive: want what `docker save` writes"):
        images(tmp_path / "a.tar")


def test_a_compressed_archive_is_rejected_with_its_program(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"\x1f\x8b\x08\0")
    with pytest.raises(UnsupportedError, match="unpack it with gunzip first"):
        images(tmp_path / "a.tar")
