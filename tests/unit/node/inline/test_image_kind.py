"""The row of the kind `image`: its options, its CSIDriver object, and the drivers whose manifests it runs."""

from __future__ import annotations

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.csi.inline.image.source import DEFAULT_SIZE, ImageInline
from tonnage.node.inline import sources
from tonnage.node.inline.config import parse_inline
from tonnage.node.inline.sources import InlineContext
from tonnage.storage.images import reference


def build(text: str, **context: object) -> ImageInline:
    nowhere = InlineContext("n", None, lambda pod, type_, reason, message: None, RealClock(), **context)  # type: ignore[arg-type]
    found = sources.build(parse_inline(text), nowhere)
    assert isinstance(found, ImageInline)
    return found


def test_options(tmp_path: object) -> None:
    assert build("image").default_size == DEFAULT_SIZE
    assert build("image,writable=64Mi").default_size == 64 << 20
    assert build("image,writable=0").default_size is None
    assert not build("image").pullers
    source = build("image,registry=a.example+http://b.example:5000", image_stores=(tmp_path,))
    (puller,) = source.pullers
    assert puller.allows(reference.parse("a.example/x"))
    assert puller.allows(reference.parse("b.example:5000/x"))
    assert not puller.allows(reference.parse("busybox"))
    source = build("image,registry=a.example,folder=/i,containerd=/run/c.sock", image_stores=(tmp_path,))
    assert [puller.is_remote for puller in source.pullers] == [False, False, True]
    for text in (
        "image,registry=*",
        "image,writable=much",
        "image,color=red",
        "image,mirror=docker.io",
        "image,folder=a",
        "image,containerd=/a/../b",
    ):
        with pytest.raises(InvalidError):
            build(text)


def test_the_csi_driver_object() -> None:
    (found,) = sources.csi_drivers([parse_inline("image")], RealClock())
    assert found["metadata"]["name"] == "image.tonnage.dev"
    assert found["spec"]["volumeLifecycleModes"] == ["Ephemeral", "Persistent"]
    assert found["spec"]["fsGroupPolicy"] == "File"
    assert "tokenRequests" not in found["spec"]


def test_the_drivers_whose_manifests_run() -> None:
    found = sources.compat_inlines()
    assert parse_inline(found["image-populator"]).name == "image.csi.k8s.io"
    assert parse_inline(found["container-image"]).name == "container-image.csi.k8s.io"
