"""The content of one block device: formatted once, published. Blocking.

While content is made, the device node is locked (flock) by a descriptor that mkfs inherits. If this process is killed,
the lock lasts as long as the orphaned mkfs, so no other process formats or mounts the device meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tonnage.base.errors import BusyError, HostError, PreconditionError, UnsupportedError, host_errors
from tonnage.host import btrfs, device, files, loop, mount, selinux
from tonnage.host.descriptor import closing, opened
from tonnage.host.device import is_unused
from tonnage.host.run import CommandError, run
from tonnage.storage.pools.base.parameters import SOURCE, source_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import mounts
from tonnage.storage.pools.fs.formats import FORMATS, form_of

log = logging.getLogger(__name__)
_MKFS_TIMEOUT = 600.0
_OPTIONS = {"ext4": ("nodev", "errors=remount-ro"), "xfs": ("nodev",), "btrfs": ("nodev",)}
_HOLD_NODES = frozenset({"devtmpfs", "tmpfs"})
_PAUSES = (0.0, 0.01, 0.05, 0.2)  # seconds
_ZEROOUT = 0x127F  # BLKZEROOUT
_DISCARD = 0x1277  # BLKDISCARD
_STEP = 256 * 1024**2


@contextmanager
def locked(path: str) -> Iterator[int]:
    """Open and lock the device. Raises: BusyError while another process has it locked, HostError."""
    with host_errors(f"cannot open {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with closing(fd):
        if not try_lock(fd):
            raise BusyError(f"{path} is being formatted, by a process of an earlier run or another program")
        yield fd


def try_lock(fd: int) -> bool:
    """Lock an open file or device; whether that succeeded after some attempts. Raises: OSError."""
    return any(files.try_lock(fd) for _ in attempts())


def attempts() -> Iterator[None]:
    """Wait before each of a few attempts.

    udev looks at a device for a moment after it was made or written; the kernel may free a loop device a moment after
    its last umount.
    """
    for pause in _PAUSES:
        if pause:
            time.sleep(pause)
        yield


def prepare(fd: int, path: str, record: VolumeRecord, *, zeroed: bool, options: Sequence[str] = ()) -> None:
    """Make the file system of a volume in state new, and populate it from its source. Idempotent.

    A used file system stays, and what an interrupted mkfs of ours left is made again. The initial content of raw block
    was made with the volume. zeroed: blocks that were never written read as zeros. options: further ones of mkfs.
    Raises: PreconditionError when foreign content is on it, HostError, and what fill_once() raises.
    """
    with host_errors(f"cannot prepare {path}"):
        if record.block:
            return
        if must_format(fd, path, record):
            _mkfs(fd, path, record, options, zeroed=zeroed)
        fill(path, record)
        os.fsync(fd)


def fill(path: str, record: VolumeRecord) -> None:
    """Populate the file system on a device from its class's source, once. Raises: what fill_once() raises."""
    if folder := source_of({SOURCE: record.from_folder}):
        from tonnage.storage.pools.fs import populate

        with mount.unseen(path, record.fstype, _OPTIONS[record.fstype]) as root:
            populate.fill_once(folder, root, record.size)


def must_format(fd: int, path: str, record: VolumeRecord) -> bool:
    """Whether to make the file system: there is none, or an unused one that an interrupted mkfs left.

    The content of the device decides, never the record alone: it may be restored from before the volume was used.

    False when the volume's own was ever mounted or holds a file: it stays, with its content. Raises: PreconditionError
    when foreign content is there, OSError.
    """
    found = device.probe(fd)
    if found is None:
        return True
    if found.uuid != record.uuid or found.kind != record.fstype:
        raise PreconditionError(
            f"{path} of the new volume {record.name} holds {found.kind} that we did not make:"
            " it will not be formatted; look at it, then delete the volume"
        )
    if is_unused(fd):
        return True
    log.warning("record says new, but the file system was used, left as it is volume=%s path=%s", record.name, path)
    return False


def _mkfs(fd: int, path: str, record: VolumeRecord, options: Sequence[str], *, zeroed: bool) -> None:
    def command(*, prezeroed: bool) -> list[str]:
        words = form_of(record.fstype, record.mkfs).mkfs(path, record.length, record.uuid, prezeroed=prezeroed)
        words[1:1] = options
        # Without discard mkfs writes zeros, which take real blocks of a thin pool.
        return [word for word in words if word != "-K"] if zeroed else words

    try:
        run(command(prezeroed=zeroed), timeout=_MKFS_TIMEOUT, pass_fds=(fd,))
    except CommandError as failure:
        if "prezeroed" not in failure.stderr:
            raise
        run(command(prezeroed=False), timeout=_MKFS_TIMEOUT, pass_fds=(fd,))  # e2fsprogs before 1.47


def stays(condition: Callable[[], bool]) -> bool:
    """Whether a condition still holds after some time."""
    return all(condition() for _ in attempts())


def zero(fd: int, start: int = 0) -> None:
    """Overwrite a device up to its end with zeros, by the device itself where it can. Raises: OSError."""
    end = device.size(fd)
    for at in range(start, end, _STEP):
        zero_range(fd, at, min(_STEP, end - at))
    os.fsync(fd)


def discard(fd: int) -> None:
    """Discard all blocks of a device; where it cannot, its content stays. Raises: OSError."""
    with suppress(OSError):
        fcntl.ioctl(fd, _DISCARD, struct.pack("=QQ", 0, device.size(fd)))
    os.fsync(fd)


def zero_range(fd: int, start: int, length: int) -> None:
    """Write zeros to a range, aligned to 512 bytes. Not yet durable. Raises: OSError."""
    fcntl.ioctl(fd, _ZEROOUT, struct.pack("=QQ", start, length))


def mount_at(path: str, record: VolumeRecord, target: Path, options: Sequence[str]) -> None:
    """Mount a formatted volume. options: additional mount options. Raises: HostError, PreconditionError."""
    try:
        mount.mount(path, target, record.fstype, (*_OPTIONS[record.fstype], *options))
    except HostError as failure:
        if why := _context_conflict(path, options):
            raise PreconditionError(f"volume {record.name} cannot be mounted at {target}: {why}") from failure
        raise


def _context_conflict(path: str, options: Sequence[str]) -> str:
    """Why a device cannot be mounted with the SELinux context of these options, "" if that is not the reason."""
    if selinux.context_of(options) and not selinux.is_enabled():
        return "mount option context=: this node's kernel runs without SELinux; leave it out of mountOptions"
    number = _own_number(path)
    mounted = (entry for entry in mount.mounts() if entry.fstype in FORMATS and _number(entry.source) == number)
    conflicts = (mounts.context_conflict(entry, options) for entry in mounted)
    return next((f"it {conflict}" for conflict in conflicts if conflict), "")


def is_shown(path: str, node: Path) -> bool:
    """Whether the node at a path is of that device. A block and a character device may have the same number."""
    wanted, shown = device.find(path), device.find(node, follow=False)
    if wanted is None or shown is None or stat.S_IFMT(wanted.st_mode) != stat.S_IFMT(shown.st_mode):
        return False
    return wanted.st_rdev == shown.st_rdev != 0


def is_published(path: str, target: Path, *, readonly: bool) -> bool:
    """Whether the node at target is of that device, or of a read-only view of it."""
    if (index := loop_of(target)) is not None:
        return readonly and loop.is_readonly(index) and loop.backs(index, os.path.realpath(path))
    return not readonly and is_shown(path, target)


def publish_readonly(path: str, target: Path) -> None:
    """Publish a device read-only at target, by a read-only loop device over it. Raises: HostError, PreconditionError.

    A read-only bind mount of the node would not stop writes to the device. Raises: UnsupportedError for a character
    device.
    """
    if is_character(path):
        raise UnsupportedError(f"{path}: memory of mode devdax cannot be shown read-only")
    mounts.make_file(target)
    real = os.path.realpath(path)
    with host_errors(f"cannot open {path}"), opened(real) as fd:
        bind_loop(fd, real, target, readonly=True)


def bind_loop(fd: int, name: str, target: Path, *, readonly: bool) -> None:
    """Attach a file to a loop device until it is detached, and bind-mount the device's node. Raises: HostError."""
    attached = loop.attach(fd, name, readonly=readonly, autoclear=False)
    attached.close()
    try:
        mount.bind(attached.path, target)
    except BaseException:
        loop.detach(attached.index)
        raise


def is_character(path: str) -> bool:
    """Whether a device is mapped (devdax) rather than read and written."""
    found = device.find(path)
    return found is not None and stat.S_ISCHR(found.st_mode)


def number_of(path: str | None) -> tuple[int, int] | None:
    """Major and minor number of a device, None for none. Raises: OSError."""
    if path is None:
        return None
    number = os.stat(path).st_rdev
    return os.major(number), os.minor(number)


def unpublish(target: Path) -> None:
    """Unmount and remove target. Raises: PreconditionError while it is in use, HostError."""
    index = loop_of(target)
    is_view = index is not None and loop.is_readonly(index)
    mounts.unpublish(target)
    if index is not None and is_view:
        loop.detach(index)


def free_loops(indexes: Iterable[int]) -> None:
    """Free loop devices that are mounted and published nowhere, as a kill or an error left them. Raises: HostError."""
    if not (indexes := set(indexes)):
        return
    used = shown()
    for index in indexes:
        if loop.device(index) not in used and not loop.is_autoclear(index):
            log.info("freeing loop device that is shown nowhere device=%s", loop.device(index))
            loop.detach(index)


def shown() -> set[str]:
    """The devices that are mounted, or whose nodes are bind-mounted."""
    found = set()
    for entry in mount.mounts():
        found.add(entry.source)
        if entry.fstype == "devtmpfs" and entry.root != "/":
            found.add(f"/dev{entry.root}")
    return found


def roots(path: str, record: VolumeRecord) -> Iterator[int]:
    """The roots of all visible mounts of a volume on a device, opened; the caller closes them."""
    number = _own_number(path)
    for entry in mount.mounts():
        if entry.fstype not in FORMATS or _number(entry.source) != number:
            continue
        fd = -1
        with suppress(OSError):
            fd = os.open(entry.target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if btrfs.fsid(fd) == record.uuid if record.fstype == "btrfs" else os.fstat(fd).st_dev == number:
                yield fd
                continue
        if fd >= 0:
            os.close(fd)  # another mount covers it, or its file system does not answer


def places() -> dict[int, Path]:
    """Where block devices are mounted, one path each, by their numbers. Raises: HostError."""
    found = dict[int, Path]()
    for entry in mount.mounts():
        if entry.fstype in FORMATS:
            found.setdefault(_number(entry.source) if entry.fstype == "btrfs" else entry.number, Path(entry.target))
    return found


def is_mounted(path: str, target: Path) -> bool:
    """Whether the mount at target is of that device's file system, also one that has shut down."""
    wanted = device.find(path)
    if wanted is None:
        return False
    if wanted.st_rdev == mount.device_at(target):
        return True
    real = str(target.resolve())  # btrfs has device numbers of its own
    return any(entry.target == real and _number(entry.source) == wanted.st_rdev for entry in mount.mounts())


def has_mount(path: str) -> bool:
    """Whether a visible mount is of the device's file system, or of its node."""
    number = _own_number(path)
    return is_bound(path) or any(
        entry.fstype in FORMATS and _number(entry.source) == number for entry in mount.mounts()
    )


def is_bound(path: str) -> bool:
    """Whether the device's node is bind-mounted somewhere, so that a pod could open it."""
    number = _own_number(path)
    return any(
        entry.fstype == "devtmpfs" and entry.root != "/" and _number(entry.target) == number for entry in mount.mounts()
    )


def _own_number(path: str) -> int:
    found = device.find(path)
    return found.st_rdev or -1 if found is not None else -1


def _number(path: str) -> int:
    """The device number of a node. Skips nodes of others that cannot be read."""
    try:
        return os.stat(path).st_rdev or -1
    except OSError:
        return -1


def loop_of(path: Path) -> int | None:
    """The number of the loop device at path, None when there is none.

    Raises: HostError when that cannot be read: an error of the machine does not mean that there is none. The root of a
    file system is none, whatever it answers.
    """
    try:
        found = device.find(path, follow=False)
    except HostError:
        entry = mount.at(path)
        if entry is None or entry.fstype in _HOLD_NODES:
            raise
        return None
    return loop.index_of(found.st_rdev) if found is not None and found.st_rdev else None
