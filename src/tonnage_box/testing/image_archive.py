"""Small container images for tests: layers, and OCI layouts or archives of them, made in memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.storage.images import manifest

_OCI = "application/vnd.oci.image."
_OCI_NOTE = "org.opencontainers.image."


@dataclass
class LayerTar:
    """A layer that is built entry by entry. format: of tarfile."""

    format: int = tarfile.PAX_FORMAT
    _buffer: io.BytesIO = field(default_factory=io.BytesIO)

    def __post_init__(self) -> None:
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=self.format)  # noqa: SIM115  # closed by data()

    def add(self, name: str, data: bytes = b"", **fields: Any) -> LayerTar:
        """Add an entry. fields: attributes of TarInfo, as type, linkname, mode, uid."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def folder(self, name: str, mode: int = 0o755) -> LayerTar:
        """Add a folder."""
        return self.add(name, type=tarfile.DIRTYPE, mode=mode)

    def symlink(self, name: str, target: str) -> LayerTar:
        """Add a symlink."""
        return self.add(name, type=tarfile.SYMTYPE, linkname=target)

    def link(self, name: str, target: str) -> LayerTar:
        """Add a hard link."""
        return self.add(name, type=tarfile.LNKTYPE, linkname=target)

    def data(self) -> bytes:
        """The archive, complete."""
        self._tar.close()
        return self._buffer.getvalue()


def digest(data: bytes) -> str:
    """The sha256 digest of a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config(layers: Sequence[bytes], **run: Any) -> bytes:
    """A configuration for uncompressed layers. run: fields of config, as Entrypoint."""
    platform = manifest.machine()
    diffs = [digest(layer) for layer in layers]
    return json.dumps(
        {
            "architecture": platform.architecture,
            "os": platform.os,
            "rootfs": {"type": "layers", "diff_ids": diffs},
            "config": run,
        }
    ).encode()


def layout(
    layers: Sequence[bytes], *, name: str = "test:latest", compressed: bool = True, **run: Any
) -> dict[str, bytes]:
    """The files of an OCI layout of one image. layers: tar archives, the lowest first. run: as in config()."""
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def put(kind: str, data: bytes, **more: Any) -> dict[str, Any]:
        files[f"blobs/sha256/{digest(data)[7:]}"] = data
        return {"mediaType": f"{_OCI}{kind}", "digest": digest(data), "size": len(data), **more}

    blobs = [gzip.compress(layer, 1, mtime=0) if compressed else layer for layer in layers]
    kind = "layer.v1.tar+gzip" if compressed else "layer.v1.tar"
    document = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}manifest.v1+json",
        "config": put("config.v1+json", config(layers, **run)),
        "layers": [put(kind, blob) for blob in blobs],
    }
    notes = {"org.opencontainers.image.ref.name": name}
    found = put("manifest.v1+json", json.dumps(document).encode(), annotations=notes)
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [found]}).encode()
    return files


def artifact(titled: Mapping[str, bytes], *, name: str) -> dict[str, bytes]:
    """The files of an OCI layout of an artifact, as `oras push` makes it: one layer for each file."""
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def put(media_type: str, data: bytes, **annotations: str) -> dict[str, Any]:
        files[f"blobs/sha256/{digest(data)[7:]}"] = data
        more = {"annotations": {f"{_OCI_NOTE}{key}": value for key, value in annotations.items()}}
        return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}

    document = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}manifest.v1+json",
        "artifactType": "application/vnd.example",
        "config": put("application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [put("application/octet-stream", data, title=title) for title, data in titled.items()],
    }
    found = put(f"{_OCI}manifest.v1+json", json.dumps(document).encode(), **{"ref.name": name})
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [found]}).encode()
    return files


def saved(layers: Sequence[bytes], *, name: str = "test:latest", **run: Any) -> dict[str, bytes]:
    """The files of an archive of `docker save`, as it was before it had OCI layouts."""
    files = {f"{number}/layer.tar": layer for number, layer in enumerate(layers)}
    described = [{"Config": "config.json", "RepoTags": [name], "Layers": list(files)}]
    return {**files, "config.json": config(layers, **run), "manifest.json": json.dumps(described).encode()}


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of files."""
    tar = LayerTar()
    for name, data in files.items():
        tar.add(name, data)
    return tar.data()


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def busybox(path: str | os.PathLike[str] = "/usr/bin/busybox") -> bytes:
    """A layer with a static busybox, and its programs in /bin."""
    tar = LayerTar().folder("bin").folder("tmp", 0o1777).folder("etc")
    tar.add("bin/busybox", Path(path).read_bytes(), mode=0o755)
    for program in ("sh", "cat", "ls", "id", "env", "sleep", "echo", "pwd", "touch", "mount", "stat", "df", "test"):
        tar.symlink(f"bin/{program}", "busybox")
    users = b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:44:web:/srv/web:/bin/sh\n"
    groups = b"root:x:0:\nstaff:x:44:\nlogs:x:55:web,other\n"
    return tar.add("etc/passwd", users, mode=0o644).add("etc/group", groups, mode=0o644).data()
