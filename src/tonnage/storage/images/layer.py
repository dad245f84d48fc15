"""Unpacking of one layer into a folder of its own, as overlayfs wants it below others. Blocking; needs root.

Layers are hostile. Every entry is made below the layer's open directory, and no symlink is ever followed. A whiteout
becomes a character device 0:0, an opaque folder gets `trusted.overlay.opaque`. setuid and setgid bits are taken off;
devices, fifos and all extended attributes but `user.*` are dropped.

A plain archive is unpacked by the same rules, but for marks: a name like `.wh.x` is a file. Devices, fifos, symlinks
that lead or may lead out of its root, and hard links to symlinks are then rejected.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from tonnage.base.errors import InvalidError, ignore_errno
from tonnage.host import nofollow, tree
from tonnage.host.descriptor import closing, opened
from tonnage.storage.images.stream import CHUNK
from tonnage.storage.images.tar_reader import TarEntry, TarReader

OPAQUE = "trusted.overlay.opaque"
_WHITEOUT, _OPAQUE_NAME, _RESERVED = b".wh.", b".wh..wh..opq", b".wh..wh."
_LONGEST_PATH, _LONGEST_NAME, _DEEPEST = 4096, 255, 100
_MAX_ID = (1 << 32) - 2
_MAX_HELD = 64 << 20
_MODE = 0o1777
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[bytes, ...]


@dataclass(frozen=True)
class LayerLimits:
    """Limits of one layer. size: bytes as files appear; seconds: of unpacking."""

    size: int = 20 << 30
    entries: int = 1_000_000
    links_per_file: int = 100
    seconds: float = 3600.0


@dataclass
class LayerCounts:
    """What a layer has. dropped: devices, fifos and reserved names that were left out."""

    size: int = 0
    entries: int = 0
    files: int = 0
    links: int = 0
    dropped: int = 0


@dataclass
class LayerUnpacker:
    """Writes entries below root, an open, empty directory. lowers: the layers below it, the highest first.

    is_layer: False for a plain archive, which has no marks and nothing below it.
    """

    root: int
    lowers: Sequence[int]
    what: str
    limits: LayerLimits = LayerLimits()
    monotonic: Callable[[], float] = time.monotonic
    counts: LayerCounts = field(default_factory=LayerCounts)
    is_layer: bool = True

    def __post_init__(self) -> None:
        self._whiteouts: list[Parts] = []
        self._times: list[tuple[Parts, float]] = []
        self._held = 0  # bytes of paths in these lists
        self._ends = self.monotonic() + self.limits.seconds

    def unpack(self, reader: TarReader) -> LayerCounts:
        """Write all entries. Raises: InvalidError, UnsupportedError, OSError; then the folder is to be removed."""
        self._inherit_root()
        for entry in reader:
            self._count(entry)
            self._apply(entry, reader)
        # A folder that is hidden or opaque needs none for its content, and overlayfs would list them there.
        for parts in sorted(self._whiteouts, key=lambda found: (len(found), found[-1] != _OPAQUE_NAME)):
            self._white_out(parts)
        for parts, mtime in reversed(self._times):  # at last: what is made in a folder changes its time
            with suppress(OSError), closing(self._open(parts)) as fd:
                os.utime(nofollow.by_fd(fd), (mtime, mtime))
        return self.counts

    def _count(self, entry: TarEntry) -> None:
        counts, limits = self.counts, self.limits
        counts.entries += 1
        counts.size += entry.size
        counts.files += entry.kind == "file"
        counts.links += entry.kind == "link"
        if counts.entries > limits.entries:
            raise self._invalid(f"more than {limits.entries} entries")
        if counts.size > limits.size:
            raise self._invalid(f"unpacked it is larger than {limits.size} bytes")
        if counts.links > limits.links_per_file * max(counts.files, 1):
            raise self._invalid(f"more than {limits.links_per_file} hard links per file")
        if self.monotonic() > self._ends:
            raise self._invalid(f"not unpacked within {limits.seconds:.0f} s")

    def _apply(self, entry: TarEntry, reader: TarReader) -> None:
        parts = self._split(entry.name, "name")
        if not self.is_layer:
            self._check_plain(entry, parts)
        elif entry.kind == "char" and entry.device == (0, 0):
            raise self._invalid(f"{_show(entry.name)} is a device 0:0, which would be a forged whiteout")
        if not parts:
            if entry.kind != "dir":
                raise self._invalid(f"{_show(entry.name)} replaces the root by a {entry.kind}")
            self._dress(self.root, entry, ())
        elif self.is_layer and parts[-1].startswith(_WHITEOUT):
            self._mark(parts)
        elif self.is_layer and (
            any(part.startswith(_WHITEOUT) for part in parts[:-1]) or entry.kind in ("char", "block", "fifo")
        ):
            self.counts.dropped += 1
        else:
            with closing(self._parent(parts)) as at:
                self._make(entry, parts, at, reader)

    def _check_plain(self, entry: TarEntry, parts: Parts) -> None:
        """Raises: InvalidError for what a volume does not get from an archive."""
        if entry.kind in ("char", "block", "fifo"):
            raise self._invalid(f"{_show(entry.name)} is a device or fifo: no volume gets one")
        if entry.kind != "symlink":
            return
        steps = [part for part in entry.link.split(b"/") if part not in (b"", b".")]
        ups = next((at for at, part in enumerate(steps) if part != b".."), len(steps))
        if b".." in steps[ups:]:  # what the name is, perhaps a symlink too, is not known before the end
            raise self._invalid(f"symlink {_show(entry.name)} has '..' after a name, in {_show(entry.link)}")
        if entry.link.startswith(b"/") or ups > len(parts) - 1:
            raise self._invalid(f"symlink {_show(entry.name)} leads out of the archive, to {_show(entry.link)}")

    def _mark(self, parts: Parts) -> None:
        """Note a whiteout, which acts on lower layers only, wherever it is in the archive."""
        name = parts[-1]
        self._held += sum(map(len, parts))
        if self._held > _MAX_HELD:
            raise self._invalid("too many folders and whiteouts")
        if name == _OPAQUE_NAME:
            self._whiteouts.append(parts)
        elif name.startswith(_RESERVED):
            self.counts.dropped += 1
        elif name[len(_WHITEOUT) :] in (b"", b".", b".."):
            raise self._invalid(f"whiteout {_show(name)} names no file")
        else:
            self._whiteouts.append((*parts[:-1], name[len(_WHITEOUT) :]))

    def _make(self, entry: TarEntry, parts: Parts, at: int, reader: TarReader) -> None:
        name = parts[-1]
        if entry.kind == "link":
            self._link(entry, parts, at)
        elif entry.kind == "dir":
            self._folder(name, at)
            with opened(name, _FOLDER, dir_fd=at) as fd:
                self._dress(fd, entry, parts)
        else:
            if entry.kind == "symlink":
                self._clear(name, at)
                self._symlink(entry, name, at)
                return
            with closing(self._create(name, at)) as fd:
                _write(fd, entry, reader)
                self._dress(fd, entry, parts)

    def _create(self, name: bytes, at: int) -> int:
        """A new file, open; it replaces what is there, which is seldom."""
        with ignore_errno(errno.EEXIST):
            return os.open(name, _CREATE, dir_fd=at)
        self._clear(name, at)
        return os.open(name, _CREATE, dir_fd=at)

    def _symlink(self, entry: TarEntry, name: bytes, at: int) -> None:
        if not entry.link or len(entry.link) >= _LONGEST_PATH or b"\0" in entry.link:
            raise self._invalid(f"symlink {_show(entry.name)} has no target, or one that is too long")
        os.symlink(entry.link, name, dir_fd=at)
        os.chown(name, *self._owner(entry), dir_fd=at, follow_symlinks=False)
        os.utime(name, (entry.mtime, entry.mtime), dir_fd=at, follow_symlinks=False)

    def _link(self, entry: TarEntry, parts: Parts, at: int) -> None:
        """A hard link to a file of this layer, or a copy of a lower layer's: links cannot cross layers."""
        target = self._split(entry.link, "link target")
        if target == parts:
            return
        source = self._find(target)
        if source is None:
            raise self._invalid(f"hard link {_show(entry.name)}: its target {_show(entry.link)} is in no layer")
        with closing(source) as fd:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                raise self._invalid(f"hard link {_show(entry.name)}: its target {_show(entry.link)} is a folder")
            if stat.S_ISLNK(found.st_mode) and not self.is_layer:  # elsewhere it would lead elsewhere
                raise self._invalid(f"hard link {_show(entry.name)}: its target {_show(entry.link)} is a symlink")
            mine = self._open_or_none(target)
            self._clear(parts[-1], at)
            if mine is not None:
                os.close(mine)
                with closing(self._parent(target)) as folder:
                    os.link(target[-1], parts[-1], src_dir_fd=folder, dst_dir_fd=at, follow_symlinks=False)
                return
            self.counts.size += found.st_size
            _copy(fd, found, parts[-1], at)

    def _find(self, parts: Parts) -> int | None:
        """What a path is in this layer, else in the lower ones."""
        return find([self.root, *self.lowers], parts) if parts else None

    def _split(self, name: bytes, word: str) -> Parts:
        """The components of a relative path. Raises: InvalidError."""
        if name.startswith(b"/"):
            raise self._invalid(f"{word} {_show(name)} is absolute")
        if b"\0" in name or not name:
            raise self._invalid(f"{word} {_show(name)} is empty or has a NUL")
        parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
        if b".." in parts:
            raise self._invalid(f"{word} {_show(name)} has '..'")
        if len(name) > _LONGEST_PATH or len(parts) > _DEEPEST or any(len(part) > _LONGEST_NAME for part in parts):
            raise self._invalid(f"{word} {_show(name)} is too long or too deep")
        return parts

    def _open(self, parts: Parts) -> int:
        return nofollow.open_beneath(self.root, b"/".join(parts) or b".", os.O_RDONLY | os.O_DIRECTORY)

    def _open_or_none(self, parts: Parts) -> int | None:
        with ignore_errno(errno.ENOENT, errno.ENOTDIR, errno.ELOOP), closing(self._open(parts[:-1])) as at:
            return os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        return None

    def _parent(self, parts: Parts) -> int:
        """The open folder of an entry, made where it is missing; files and symlinks on the way are replaced."""
        with ignore_errno(errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return self._open(parts[:-1])
        at = os.dup(self.root)
        for depth, part in enumerate(parts[:-1], 1):
            with closing(at):
                if self._folder(part, at):
                    self._inherit(parts[:depth], part, at)
                inner = os.open(part, _FOLDER, dir_fd=at)
            at = inner
        return at

    def _folder(self, name: bytes, at: int) -> bool:
        """Make a folder; False if it is there. One that replaces another file of this layer hides what is below."""
        try:
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=at)
            return True
        if stat.S_ISDIR(found.st_mode):
            return False
        os.unlink(name, dir_fd=at)
        os.mkdir(name, 0o755, dir_fd=at)
        if self.is_layer:
            with opened(name, _FOLDER, dir_fd=at) as fd:
                os.setxattr(fd, OPAQUE, b"y")
        return True

    def _inherit_root(self) -> None:
        """The root has owner and mode of that below it, unless the layer names it; overlayfs shows the topmost."""
        if self.lowers:
            found = os.fstat(self.lowers[0])
            os.fchown(self.root, found.st_uid, found.st_gid)
            os.fchmod(self.root, stat.S_IMODE(found.st_mode))

    def _inherit(self, parts: Parts, name: bytes, at: int) -> None:
        """A folder that the archive does not name has owner and mode of the one below it."""
        lower = find(self.lowers, parts)
        if lower is None:
            return
        with closing(lower), opened(name, _FOLDER, dir_fd=at) as fd:
            found = os.fstat(lower)
            if stat.S_ISDIR(found.st_mode):
                os.fchown(fd, found.st_uid, found.st_gid)
                os.fchmod(fd, stat.S_IMODE(found.st_mode))
                self._held += sum(map(len, parts)) + 1
                if self._held <= _MAX_HELD:
                    self._times.append((parts, found.st_mtime))

    def _clear(self, name: bytes, at: int) -> None:
        """Remove what an entry replaces: the last of a name wins."""
        try:
            os.unlink(name, dir_fd=at)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            tree.remove(nofollow.by_fd(at, os.fsdecode(name)))

    def _owner(self, entry: TarEntry) -> tuple[int, int]:
        if max(entry.uid, entry.gid) > _MAX_ID:
            raise self._invalid(f"{_show(entry.name)}: owner {entry.uid}:{entry.gid} is out of range")
        return entry.uid, entry.gid

    def _dress(self, fd: int, entry: TarEntry, parts: Parts) -> None:
        """Owner, mode, user's attributes and time of a file or folder."""
        os.fchown(fd, *self._owner(entry))
        os.fchmod(fd, entry.mode & _MODE)
        for name, value in entry.xattrs.items():
            if name.startswith(b"user.") and not name.startswith(b"user.overlay."):
                try:
                    os.setxattr(fd, name, value)
                except (OSError, ValueError) as failure:
                    if getattr(failure, "errno", 0) == errno.EOPNOTSUPP:
                        continue
                    raise self._invalid(f"{_show(entry.name)}: attribute {_show(name)} cannot be set") from failure
        if entry.kind == "dir":
            self._held += sum(map(len, parts)) + 1
            if self._held <= _MAX_HELD:  # the time of a folder is not worth more memory
                self._times.append((parts, entry.mtime))
        else:
            os.utime(fd, (entry.mtime, entry.mtime))

    def _white_out(self, parts: Parts) -> None:
        """Hide a path of lower layers; what this layer has there stays.

        Only where something is to be hidden: in a folder that no lower layer has, overlayfs would list the device.
        """
        *_, name = parts
        if name == _OPAQUE_NAME:
            with closing(self._parent(parts)) as at:
                os.setxattr(nofollow.by_fd(at), OPAQUE, b"y")
            return
        if (found := self._find(parts)) is None:
            return
        os.close(found)
        with closing(self._parent(parts)) as at:
            try:
                with opened(name, _FOLDER, dir_fd=at) as fd:
                    os.setxattr(fd, OPAQUE, b"y")
            except FileNotFoundError:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=at)
            except OSError as failure:
                if failure.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise

    def _invalid(self, why: str) -> InvalidError:
        return InvalidError(f"{self.what}: {why}: the {'layer' if self.is_layer else 'archive'} is not unpacked")


def find(layers: Sequence[int], parts: Parts) -> int | None:
    """Open (O_PATH) what overlayfs shows at a path of layers, the highest first; None for nothing.

    Raises: OSError.
    """
    with ExitStack() as stack:
        active = list(layers)
        for depth, part in enumerate(parts, 1):
            folders: list[int] = []
            for fd in _versions(active, part, stack):
                mode = os.fstat(fd).st_mode
                if stat.S_ISDIR(mode):
                    folders.append(fd)
                    if _is_opaque(fd):
                        break
                    continue
                if not folders and depth == len(parts) and not stat.S_ISCHR(mode):
                    return os.dup(fd)
                break
            if not folders:
                return None
            active = folders
        return os.dup(active[0])


def _versions(folders: Sequence[int], name: bytes, stack: ExitStack) -> Iterator[int]:
    for at in folders:
        with suppress(FileNotFoundError):
            yield stack.enter_context(opened(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at))


def _is_opaque(fd: int) -> bool:
    with suppress(OSError):
        return os.getxattr(nofollow.by_fd(fd), OPAQUE) == b"y"
    return False


def _write(fd: int, entry: TarEntry, reader: TarReader) -> None:
    """The content of a file; holes of a sparse one stay holes."""
    if entry.segments is None:
        for part in reader.data():
            _write_all(fd, part)
        return
    rest = b""
    data = reader.data()
    for offset, length in entry.segments:
        os.lseek(fd, offset, os.SEEK_SET)
        left = length
        while left:
            rest = rest or next(data)
            _write_all(fd, rest[:left])
            left, rest = left - len(rest[:left]), rest[left:]
    os.ftruncate(fd, entry.size)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _copy(source: int, found: os.stat_result, name: bytes, at: int) -> None:
    """Copy a file or symlink of a lower layer, with its owner, mode and time."""
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(b"", dir_fd=source), name, dir_fd=at)
        os.chown(name, found.st_uid, found.st_gid, dir_fd=at, follow_symlinks=False)
        return
    with (
        opened(nofollow.by_fd(source)) as reader,
        opened(name, _CREATE, dir_fd=at) as writer,
    ):
        while os.sendfile(writer, reader, None, CHUNK * 16):
            pass
        os.fchown(writer, found.st_uid, found.st_gid)
        os.fchmod(writer, stat.S_IMODE(found.st_mode))
        os.utime(writer, ns=(found.st_atime_ns, found.st_mtime_ns))


def _show(name: bytes) -> str:
    return ascii(name[:80].decode(errors="replace"))
