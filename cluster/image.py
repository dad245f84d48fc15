"""Container images without a registry or a daemon: one layer, in the archive form that `ctr images import` takes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_FOLDERS = {"bin": 0o755, "tmp": 0o1777, "etc": 0o755, "proc": 0o755, "dev": 0o755, "sys": 0o755, "data": 0o1777}


def busybox_image(archive: Path, name: str, busybox: Path, *, command: Sequence[str] = ()) -> None:
    """An image with a static busybox and all its commands, for pods of tests."""
    links = {f"bin/{applet}": "busybox" for applet in _APPLETS}
    write(archive, name, {"bin/busybox": busybox.read_bytes()}, links=links, command=command or ("/bin/sh",))


_APPLETS = ("sh", "cat", "cp", "dd", "df", "echo", "ls", "mkdir", "mount", "mv", "rm", "sleep", "stat", "sync", "touch",
            "test", "true", "false", "wget", "nc", "id", "grep", "head", "tail", "tr", "wc", "date", "chmod", "chown",
            "sed", "awk", "find", "env", "printf", "sha256sum", "truncate", "ps", "kill", "hostname")  # fmt: skip


def write(
    archive: Path, name: str, files: Mapping[str, bytes], *, links: Mapping[str, str], command: Sequence[str]
) -> None:
    """Write an image archive. files: path -> content, all executable; links: path -> target. Same input, same bytes."""
    layer = _layer(files, links)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(command), "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as out:
        for path, content in ((config_name, text), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(out, path, content, 0o644)


def _layer(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for folder, mode in _FOLDERS.items():
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            out.addfile(entry)
        for path, content in {**files, "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n"}.items():
            _add(out, path, content, 0o755)
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            out.addfile(entry)
    return buffer.getvalue()


def _add(out: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    out.addfile(entry, io.BytesIO(content))
