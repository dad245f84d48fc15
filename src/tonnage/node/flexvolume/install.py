"""Installs and removes the program that the kubelet runs for FlexVolumes. Blocking."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.errors import InvalidError, PreconditionError, host_errors
from tonnage.host.descriptor import closing
from tonnage.kubernetes.api.names import FLEX_DRIVERS

SPOOL = Path("/run/tonnage/flex")
PLUGINS = Path("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")
"""The kubelet's default for --volume-plugin-dir."""
WAIT_SECONDS = 110
"""Time for the agent's answer; the kubelet tries again then."""
INIT = (
    '{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":true,"supportsMetrics":true,"fsGroup":true,'
    '"requiresFSResize":false}}'
)
_OURS = b"# FlexVolume driver of tonnage."
_PLAIN = re.compile(r"/[A-Za-z0-9._/-]*")


def program(spool: Path = SPOOL, *, seconds: int = WAIT_SECONDS) -> str:
    """The program's text. Raises: InvalidError for a spool whose path a shell would read as something else."""
    if not _PLAIN.fullmatch(str(spool)):
        raise InvalidError(f"folder {spool}: want an absolute path of letters, digits, '.', '_' and '-'")
    text = (Path(__file__).parent / "driver.sh").read_text()
    for key, value in (("SPOOL", str(spool)), ("INIT", INIT), ("SECONDS", str(seconds))):
        text = text.replace(f"@{key}@", value)
    return text


def path_of(plugins: Path, driver: str) -> Path:
    """Where the kubelet looks for a driver."""
    return plugins / driver.replace("/", "~") / driver.partition("/")[2]


def install(plugins: Path, spool: Path = SPOOL, drivers: Sequence[str] = FLEX_DRIVERS) -> list[Path]:
    """Write the program for each driver; return the files that changed. Idempotent.

    Raises: PreconditionError where another program is installed under such a name, InvalidError, HostError.
    """
    text = program(spool).encode()
    paths = [path_of(plugins, driver) for driver in drivers]
    before = [_read(path) for path in paths]  # all are checked before one is written
    changed = [path for path, old in zip(paths, before, strict=True) if old != text]
    for path in changed:
        with host_errors(f"cannot install {path}", advice="name the kubelet's own folder, its --volume-plugin-dir"):
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            # The kubelet ignores names with a dot, and runs the file as soon as it is there.
            new = path.parent / f".{path.name}.new"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(new, flags, 0o755)) as fd:
                os.write(fd, text)
                os.fchmod(fd, 0o755)
            os.rename(new, path)
    return changed


def uninstall(plugins: Path, drivers: Sequence[str] = FLEX_DRIVERS) -> list[Path]:
    """Remove our programs; return those removed. Idempotent. Raises: HostError; programs of others stay."""
    removed = []
    for path in (path_of(plugins, driver) for driver in drivers):
        try:
            if _read(path) is None:
                continue
        except PreconditionError:
            continue
        with host_errors(f"cannot remove {path}"):
            path.unlink()
            removed.append(path)
            if not os.listdir(path.parent):
                path.parent.rmdir()
    return removed


def _read(path: Path) -> bytes | None:
    """The program of ours at path, None for none. Raises: PreconditionError for another one, HostError."""
    with host_errors(f"cannot read {path}"):
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return None
    if _OURS not in found:
        raise PreconditionError(f"{path}: another FlexVolume driver is installed there; remove it first")
    return found
