"""An enforcing SELinux in a guest, and processes with a pod's label. Used by guest_selinux.py.

The guest's root, virtiofs, stores no labels; the policy (selinux.cil) gives all of its files one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tonnage.host import mount

_POLICY, _FILESYSTEM = Path(__file__).with_name("selinux.cil"), Path("/sys/fs/selinux")
_VERSION = "33"
"""Of the policy's format: what Linux 6.1 reads (/sys/fs/selinux/policyvers)."""
_FILES, _PROCESSES = "system_u:object_r:container_file_t", "system_u:system_r:container_t"


def enforce() -> None:
    """Load the policy, and enforce it. Idempotent."""
    if mount.is_mount(_FILESYSTEM):
        return
    compiled = Path("/run/selinux.policy")
    subprocess.run(["secilc", "-c", _VERSION, "-o", compiled, "-f", "/dev/null", _POLICY], check=True)
    mount.mount("selinuxfs", _FILESYSTEM, "selinuxfs")
    (_FILESYSTEM / "load").write_bytes(compiled.read_bytes())
    (_FILESYSTEM / "enforce").write_text("1")


def files_of(level: str) -> str:
    """The context of the files of a pod with that level, as the kubelet computes it of container-selinux's names."""
    return f"{_FILES}:{level}"


def option(level: str) -> str:
    """The mount option, as the kubelet writes it (AddSELinuxMountOption)."""
    return f'context="{files_of(level)}"'


def label_of(path: Path) -> str:
    """The context of a file."""
    return os.getxattr(path, "security.selinux", follow_symlinks=False).rstrip(b"\0").decode()


def relabel(folder: Path, level: str) -> None:
    """Label all files below, as a container runtime does for a mount with selinux_relabel (CRI)."""
    context = files_of(level).encode()
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.setxattr(os.path.join(place, name), "security.selinux", context, follow_symlinks=False)


def is_relabeled(path: Path) -> bool:
    """Whether the kubelet would let the runtime label what is mounted there (GetSELinuxSupport of hostutil)."""
    entry = mount.at(path)
    assert entry is not None
    return "seclabel" in entry.shared_options.split(",")


def in_pod(level: str, script: str, folder: Path) -> str:
    """What a shell in a container with that level prints; "denied" where SELinux denies something."""

    def label() -> None:
        Path("/proc/self/attr/exec").write_text(f"{_PROCESSES}:{level}")

    done = subprocess.run(
        ["sh", "-c", f"cd / && {script}", "sh", folder], capture_output=True, text=True, preexec_fn=label, check=False
    )
    if done.returncode:
        assert "Permission denied" in done.stderr, done.stderr
        return "denied"
    return done.stdout.strip()
