"""The writer of image archives: an OCI layout in a tar, with the manifest that `docker load` looks for as well.

The same input gives the same bytes: entries are sorted, belong to root, and carry the time that they are given. Layers
are not compressed: what a compressor writes depends on its version, and registries compress what they are sent.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

ARCHITECTURES = {"amd64": "amd64", "arm64": "arm64"}
"""Debian's word -> OCI's."""
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Entry:
    """A file (data), a symbolic link (link) or a folder (neither). mode: permission bits."""

    mode: int
    data: bytes | None = None
    link: str = ""


Tree = dict[str, Entry]
"""Path without a leading slash -> what is there."""


def layer(tree: Mapping[str, Entry], time: int) -> bytes:
    """A layer: all of a tree and the folders above what is in it. time: of every entry, in seconds since 1970."""
    folders = {str(above) for path in tree for above in PurePosixPath(path).parents} - {"."}
    full = {path: Entry(0o755) for path in folders} | dict(tree)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as out:
        for path in sorted(full):
            _add(out, path, full[path], time)
    return buffer.getvalue()


def write(
    archive: Path, name: str, layers: Sequence[bytes], *, config: Mapping[str, Any], time: int, debian: str = "amd64"
) -> str:
    """Write an image archive; the digest of its manifest.

    name: with its tag, as tonnage.dev/tonnage:1. layers: the lowest first. config: of containers, as OCI's image
    configuration has it. debian: the architecture, as Debian calls it. The file is replaced at once or not at all.
    """
    created = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    diffs = [_digest(content) for content in layers]
    image = _json(
        {
            "created": created,
            "architecture": ARCHITECTURES[debian],
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": diffs},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor("config.v1+json", image),
            "layers": [_descriptor("layer.v1.tar", content) for content in layers],
        }
    )
    labels = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [_descriptor("manifest.v1+json", manifest) | {"annotations": labels}]}
    docker = [{"Config": _blob(image), "RepoTags": [name], "Layers": [_blob(content) for content in layers]}]
    files = {_blob(content): content for content in (image, manifest, *layers)}
    files |= {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(docker),
    }
    _save(archive, layer({path: Entry(0o644, content) for path, content in files.items()}, time))
    return _digest(manifest)


def _save(archive: Path, content: bytes) -> None:
    unfinished = archive.with_name(f".{archive.name}.tmp")
    unfinished.write_bytes(content)
    unfinished.rename(archive)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(content), "size": len(content)}


def _add(out: tarfile.TarFile, path: str, entry: Entry, time: int) -> None:
    info = tarfile.TarInfo(path)
    info.mode, info.mtime = entry.mode, time
    info.uname = info.gname = "root"
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    elif entry.data is None:
        info.type = tarfile.DIRTYPE
    else:
        info.size = len(entry.data)
    out.addfile(info, io.BytesIO(entry.data or b""))
