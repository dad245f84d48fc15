"""A Debian kernel to boot in QEMU: its package is downloaded and unpacked, never installed, and kept in the user's cache.

With it goes a first RAM disk of our own: a static busybox that loads the few modules needed to reach the machine's own
file system over virtiofs, and goes on there. Standard library, apt-get and dpkg only; no privilege.
"""

from __future__ import annotations

import fcntl
import io
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

META_PACKAGE = "linux-image-cloud-amd64"
"""The smallest and quickest of Debian's kernels; it has NVDIMMs, DAX and virtiofs."""
_FORMAT = "2"
"""Changes when what is kept changes."""
_ROOT_MODULES = ("virtio_pci", "virtiofs")
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_INIT = """\
#!/busybox sh
/busybox mkdir -p /proc /dev /machine
/busybox mount -t proc proc /proc
for module in /modules/*.ko; do /busybox insmod $module; done
for word in $(/busybox cat /proc/cmdline); do case $word in folder=*) folder=${word#folder=};; esac; done
/busybox mount -t virtiofs root /machine
/busybox mount -t devtmpfs dev /machine/dev

/busybox umount /proc
exec /busybox switch_root /machine $folder/init
"""


class Unobtainable(Exception):
    """There is no kernel to be had; why."""


@dataclass(frozen=True)
class Kernel:
    """Files of one that is ready. modules: a folder with modules.dep."""

    image: Path
    initrd: Path
    modules: Path


def obtain(wanted: Sequence[str]) -> Kernel:
    """The kernel with these modules and what they need; the first time it takes a download. Raises Unobtainable.

    Where there is no archive to be reached, one that was kept will do.
    """
    cache = cache_folder("qemu")
    mark = f"{zlib.crc32(' '.join([_FORMAT, *wanted]).encode()):08x}"
    with locked(cache / "lock"):
        try:
            folder = _obtain(cache, mark, wanted)
        except Unobtainable:
            if kept := sorted(cache.glob(f"linux-image-*-{mark}")):
                folder = kept[-1]
            else:  # apt knows nothing yet, or an older package than the archive has
                call(["apt-get", "update", "-qq"])
                folder = _obtain(cache, mark, wanted)
    return Kernel(folder / "vmlinuz", folder / "initrd", folder)


def _obtain(cache: Path, mark: str, wanted: Sequence[str]) -> Path:
    package = _newest(META_PACKAGE)
    folder = cache / f"{package}-{mark}"
    if not folder.exists():
        _make(package, folder, wanted)
    return folder


def cache_folder(name: str) -> Path:
    """A folder of the user's cache, made where it is missing."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tonnage" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time has it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _newest(meta: str) -> str:
    """The package that a meta package stands for now."""
    said = call(["apt-cache", "depends", meta])
    found = re.search(r"Depends: (linux-image-[\w.+-]+)", said)
    if found is None:
        raise Unobtainable(f"apt knows no package {meta} (apt-get update)")
    return found[1]


def call(command: Sequence[str], cwd: Path | None = None) -> str:
    """What a program prints. Raises Unobtainable when it fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=500, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise Unobtainable(f"{command[0]}: {failure}") from failure
    if ended.returncode:
        raise Unobtainable(f"{' '.join(command)}: {ended.stderr.strip()[-300:]}")
    return ended.stdout


def _make(package: str, folder: Path, wanted: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        temporary = Path(made)
        for name in (package, "busybox-static"):
            call(["apt-get", "download", "-qq", name], temporary)
        for deb in temporary.glob("*.deb"):
            call(["dpkg", "-x", str(deb), "all"], temporary)
        ready = temporary / "ready"
        ready.mkdir()
        shutil.copy(next((temporary / "all/boot").glob("vmlinuz-*")), ready / "vmlinuz")
        modules = {_name(path): path for path in (temporary / "all").rglob("*.ko*")}
        order = _with_needs(modules, [*_ROOT_MODULES, *wanted])
        contents = {name: _content(modules[name]) for name in order}
        _write_modules(ready, contents)
        root = list(_with_needs(modules, _ROOT_MODULES))
        busybox = (temporary / "all/bin/busybox").read_bytes()
        (ready / "initrd").write_bytes(_initrd(busybox, [(name, contents[name]) for name in root]))
        ready.rename(folder)


def _name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


def _needs(content: bytes) -> list[str]:
    """Modules that one says it depends on."""
    found = _DEPENDS.search(content)
    return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def _with_needs(modules: Mapping[str, Path], wanted: Sequence[str]) -> dict[str, None]:
    """Those of the wanted modules that are not built in, in the order in which they can be loaded."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in order or name not in modules:
            return
        for other in _needs(_content(modules[name])):
            visit(other)
        order[name] = None

    for name in wanted:
        visit(name.replace("-", "_"))
    return order


def _write_modules(folder: Path, contents: Mapping[str, bytes]) -> None:
    lines = []
    for name, content in contents.items():
        (folder / f"{name}.ko").write_bytes(content)
        lines.append(f"{name}.ko:{''.join(f' {other}.ko' for other in _needs(content))}\n")
    (folder / "modules.dep").write_text("".join(lines))


def _initrd(busybox: bytes, modules: Sequence[tuple[str, bytes]]) -> bytes:
    """A cpio archive in the format that the kernel reads (`newc`)."""
    archive = io.BytesIO()

    def add(name: str, content: bytes, mode: int) -> None:
        raw = name.encode() + b"\0"
        fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0]
        archive.write(b"070701" + b"".join(b"%08X" % field for field in fields) + raw)
        for part in (b"", content):
            archive.write(part + b"\0" * (-(archive.tell() + len(part)) % 4))

    add("busybox", busybox, 0o100755)
    add("init", _INIT.encode(), 0o100755)
    add("modules", b"", 0o040755)
    for index, (name, content) in enumerate(modules):
        add(f"modules/{index:02d}-{name}.ko", content, 0o100644)
    add("TRAILER!!!", b"", 0)
    return archive.getvalue()
