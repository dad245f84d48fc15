"""Manifests, indexes and configurations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tonnage.base.errors import InvalidError, NotFoundError, TonnageError, UnsupportedError
from tonnage.storage.images import manifest
from tonnage.storage.images.manifest import BlobDescriptor, Platform
from tonnage_box.testing import image_archive as made

DIGEST = "sha256:" + "a" * 64
OCI = "application/vnd.oci.image."
AMD = Platform("amd64", "linux")


def document(**changes: Any) -> bytes:
    config = {"mediaType": f"{OCI}config.v1+json", "digest": DIGEST, "size": 2}
    layer = {"mediaType": f"{OCI}layer.v1.tar+gzip", "digest": DIGEST, "size": 2}
    return json.dumps({"schemaVersion": 2, "config": config, "layers": [layer], **changes}).encode()


def layer(**changes: Any) -> dict[str, Any]:
    return {"mediaType": f"{OCI}layer.v1.tar", "digest": DIGEST, "size": 2, **changes}


def titled(name: str) -> dict[str, str]:
    return {"org.opencontainers.image.title": name}


def test_an_artifact_is_no_image() -> None:
    found = manifest.manifest(document(config=layer(), layers=[layer(annotations=titled("a"))]), "artifact")
    assert found.is_artifact
    assert manifest.file_name(found.layers[0], "") == ()  # an archive, whatever its title
    (diff,) = manifest.artifact_config(found, "").rootfs.diff_ids
    assert diff != DIGEST


def test_a_manifest() -> None:
    assert manifest.manifest(document(), "image").layers[0].hex == "a" * 64


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (b"{", InvalidError, "cannot be read"),
        (b"[" * 100_000, InvalidError, "cannot be read"),
        (b"\xff", InvalidError, "cannot be read"),
        (b"[]", InvalidError, "cannot be read"),
        (document(layers="x"), InvalidError, "cannot be read"),
        (document(schemaVersion=1), UnsupportedError, "schemaVersion 1"),
        (document(mediaType="text/plain"), UnsupportedError, "is not an image"),
        (document(config=layer(), layers=[layer(mediaType="text/plain")]), UnsupportedError, "is not a layer"),
        (document(layers=[layer(mediaType="text/plain", annotations=titled("a"))]), UnsupportedError, "is not a layer"),
        *(
            (document(config=layer(), layers=[layer(mediaType="x", annotations=titled(name))]), InvalidError, "title")
            for name in ("/a", "a/../b", "..", "a//b", "a\0", "x" * 256, "a/" * 30 + "a")
        ),
        (document(layers=[layer()] * 129), InvalidError, "129 layers"),
        (document(layers=[layer(size=-1)]), InvalidError, "size -1"),
        (document(layers=[layer(size=1 << 50)]), InvalidError, "is not from 0"),
        (document(layers=[layer(digest="sha256:../../etc/passwd")]), InvalidError, "digest"),
        (document(layers=[layer(digest="sha512:" + "a" * 128)]), UnsupportedError, "is not sha256"),
        (document(layers=[layer(mediaType=f"{OCI}layer.v1.tar+encrypted")]), UnsupportedError, "is encrypted"),
        (document(layers=[layer(mediaType=f"{OCI}layer.v1.tar+lzma")]), UnsupportedError, "is not a layer"),
        (
            document(config={"mediaType": f"{OCI}config.v1+json", "digest": DIGEST, "size": 9 << 20}),
            InvalidError,
            "size",
        ),
    ],
)
def test_bad_manifests_are_rejected_by_name(data: bytes, kind: type[TonnageError], why: str) -> None:
    with pytest.raises(kind, match=why):
        manifest.manifest(data, "image")


@pytest.mark.parametrize(
    ("media_type", "compression"),
    [
        (f"{OCI}layer.v1.tar", ""),
        (f"{OCI}layer.v1.tar+gzip", "gzip"),
        (f"{OCI}layer.v1.tar+zstd", "zstd"),
        (f"{OCI}layer.nondistributable.v1.tar+gzip", "gzip"),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", "gzip"),
        ("application/vnd.docker.image.rootfs.diff.tar", ""),
    ],
)
def test_layers_that_are_unpacked(media_type: str, compression: str) -> None:
    assert manifest.compression(media_type, "layer") == compression


def config(**run: Any) -> bytes:
    return made.config([b""], **run)


def test_a_configuration() -> None:
    run = manifest.config(config(Entrypoint=["a"], Env=["A=b", "C="], User="web", Cmd=None), "image", 1).config
    assert run is not None
    assert (run.entrypoint, run.env, run.user, run.cmd) == (["a"], ["A=b", "C="], "web", None)


@pytest.mark.parametrize(
    ("data", "layers", "why"),
    [
        (config(), 2, "1 diff_ids for 2 layers"),
        (config(Env=["novalue"]), 1, "want NAME=value"),
        (config(Env=["=x"]), 1, "want NAME=value"),
        (config(Env=["A=\0"]), 1, "has a NUL"),
        (config(Cmd=["x"] * 1001), 1, "1001 entries"),
        (config(Cmd=["x" * (1 << 18)]), 1, "longer than"),
        (config(WorkingDir="../x"), 1, "WorkingDir"),
        (config(WorkingDir="/a/../../x"), 1, "WorkingDir"),
        (config(User=7), 1, "cannot be read"),
        (config().replace(b'"layers"', b'"other"'), 1, "rootfs type"),
        (config().replace(b"sha256:", b"sha256-"), 1, "diff_id"),
    ],
)
def test_bad_configurations_are_rejected_by_name(data: bytes, layers: int, why: str) -> None:
    with pytest.raises(TonnageError, match=why):
        manifest.config(data, "image", layers)


def found(architecture: str, system: str = "linux") -> BlobDescriptor:
    return BlobDescriptor("", DIGEST, 1, Platform(architecture, system))


def test_the_platform_is_chosen() -> None:
    assert manifest.choose([found("arm64"), found("amd64"), found("unknown", "unknown")], AMD, "x") == found("amd64")
    plain = BlobDescriptor("", DIGEST, 1)
    assert manifest.choose([plain], AMD, "x") == plain
    with pytest.raises(NotFoundError, match="no manifest for linux/amd64: it has linux/arm64;"):
        manifest.choose([found("arm64"), found("unknown", "unknown")], AMD, "x")
    with pytest.raises(NotFoundError, match="it has none"):
        manifest.choose([], AMD, "x")
