"""Images of a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, NotFoundError
from tonnage.host import mount
from tonnage.kubernetes.api.pods import Container
from tonnage.storage.images.store import ImageStore
from tonnage_box.kubelet.images.node_images import ImageMissingError, NodeImages
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
ONE, TWO = LayerTar().add("a", b"1").data(), LayerTar().add("b", b"2").data()


def store(tmp_path: Path, name: str, *layers: bytes) -> ImageStore:
    found = ImageStore(tmp_path / "store")
    path = tmp_path / "a.tar"
    path.write_bytes(made.archive(made.layout(layers, name=f"{name}:latest")))
    found.load(path)
    return found


def test_the_first_store_with_the_name_counts(tmp_path: Path) -> None:
    images = NodeImages([ImageStore(tmp_path / "none"), found := store(tmp_path, "web", ONE)])
    assert images.find(Container(image="docker.io/library/web")) == (found, found.find("web"))
    assert images.find(Container(image="other")) is None
    assert images.find(Container(image="Not A Name")) is None


@pytest.mark.parametrize(
    ("policy", "reason", "text"),
    [
        ("Never", "ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never'),
        ("Always", "ErrImagePull", 'failed to pull image "x": .*load it with `tonnage images load`'),
        ("IfNotPresent", "ErrImagePull", "is in no image store"),
    ],
)
def test_a_required_image_that_is_missing(policy: str, reason: str, text: str) -> None:
    with pytest.raises(ImageMissingError, match=text) as failure:
        NodeImages(required=True).find(Container(image="x", image_pull_policy=policy))
    assert failure.value.reason == reason
    with pytest.raises(InvalidError, match="invalid reference format"):
        NodeImages([ImageStore(Path("/none"))], required=True).find(Container(image="X"))


def test_a_damaged_store_is_not_taken_for_one_without_the_image(tmp_path: Path) -> None:
    found = store(tmp_path, "web", ONE)
    for path in (found.path / "images").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InvalidError, match="cannot be read"):
        NodeImages([found]).find(Container(image="web"))


@pytest.mark.real
@pytest.mark.parametrize("layers", [[ONE], [ONE, TWO], []])
def test_an_image_is_mounted_read_only(tmp_path: Path, layers: list[bytes]) -> None:
    found, target = store(tmp_path, "web", *layers), tmp_path / "volume"
    target.mkdir()
    images = NodeImages([found])
    try:
        record = images.mount("web", str(target))
        assert images.mount("web", str(target)) == record
        assert sorted(os.listdir(target)) == ["a", "b"][: len(layers)]
        if layers:
            with pytest.raises(OSError, match="Read-only"):
                (target / "new").touch()
        found.remove("web")
        assert sorted(os.listdir(target)) == ["a", "b"][: len(layers)]
    finally:
        mount.umount(target)


@pytest.mark.real
def test_pods_of_one_image_share_one_overlay(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    images = NodeImages([store(tmp_path / "link", "web", ONE, TWO)])
    targets = [tmp_path / f"volume-{number}" for number in range(5)]
    try:
        for target in targets:
            target.mkdir()
            images.mount("web", str(target))
        assert len({os.stat(target).st_dev for target in targets} - {os.stat(tmp_path).st_dev}) == 1
    finally:
        for target in targets:
            mount.umount(target)


def test_an_image_that_is_missing_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"failed to pull image .*tonnage images load"):
        NodeImages([ImageStore(tmp_path)]).mount("web", str(tmp_path))
