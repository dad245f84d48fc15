"""Container images for pods of tests: a static busybox, written without a registry or a daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.image import archive
from deploy.image.archive import Entry

_FOLDERS = {"tmp": 0o1777, "etc": 0o755, "proc": 0o755, "dev": 0o755, "sys": 0o755, "data": 0o1777}
_APPLETS = ("sh", "cat", "cp", "dd", "df", "echo", "ls", "mkdir", "mount", "mv", "rm", "sleep", "stat", "sync", "touch",
            "test", "true", "false", "wget", "nc", "id", "grep", "head", "tail", "tr", "wc", "date", "chmod", "chown",
            "sed", "awk", "find", "env", "printf", "sha256sum", "truncate", "ps", "kill", "hostname")  # fmt: skip


def busybox_image(file: Path, name: str, busybox: Path, *, command: Sequence[str] = ()) -> None:
    """An image archive with a static busybox, which runs `command` unless a pod says otherwise."""
    tree = {path: Entry(mode) for path, mode in _FOLDERS.items()}
    tree |= {f"bin/{applet}": Entry(0o777, link="busybox") for applet in _APPLETS}
    tree["bin/busybox"] = Entry(0o755, busybox.read_bytes())
    tree["etc/passwd"] = Entry(0o644, b"root:x:0:0:root:/:/bin/sh\n")
    config = {"Entrypoint": list(command or ("/bin/sh",)), "Env": ["PATH=/bin"], "WorkingDir": "/"}
    archive.write(file, name, [archive.layer(tree, 0)], config=config, time=0)
