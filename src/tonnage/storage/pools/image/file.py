"""One image file: create, format once, attach, mount, remove. Blocking.

While mkfs runs, the file is locked by a descriptor that mkfs inherits. If this process is killed, the lock lasts as
long as the orphaned mkfs, so no other process formats or mounts the file meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from tonnage.base.errors import BusyError, host_errors, ignore_errno
from tonnage.host import device, loop, mount
from tonnage.host.descriptor import closing as closing_fd
from tonnage.host.descriptor import opened
from tonnage.host.run import CommandError, run
from tonnage.storage.pools.base.parameters import erase_of
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.wipe import OVERWRITES
from tonnage.storage.pools.directory.directory import disk_errors
from tonnage.storage.pools.fs import block_device, ext4_template
from tonnage.storage.pools.fs.block_device import must_format
from tonnage.storage.pools.fs.formats import form_of

_MKFS_TIMEOUT = 300.0
_mkfs_at_once = threading.BoundedSemaphore((os.cpu_count() or 1) + 1)
_templates = ext4_template.Templates()
_IN_MEMORY_MOST = 256 * 1024**3  # bytes: above, copying what mkfs wrote costs more than it saves


def make(path: Path, record: VolumeRecord) -> None:
    """Create the file of a new volume, sparse or allocated. Replaces a leftover without a record.

    Raises: ExhaustedError when the disk is full, HostError.
    """
    with disk_errors(f"cannot make {path}", full=f"for the {record.length} bytes of {path}"):
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _extend(fd, record)
            if record.block:
                os.fsync(fd)  # a file system's image can be made again until it is formatted, this is used as it is
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)


def _extend(fd: int, record: VolumeRecord) -> None:
    if record.sparse:
        os.ftruncate(fd, record.length)
    else:
        os.posix_fallocate(fd, 0, record.length)


def open_image(path: Path, *, shared: bool = False) -> int:
    """Open the file, and lock it unless shared.

    Raises: BusyError while it is locked elsewhere, HostError when it is gone.

    The lock belongs to the open file, so an attached loop device holds it as well. So a file system is never mounted
    from two devices at once.
    """
    with host_errors(f"cannot open {path}", advice="the volume's content is lost if it is"):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with host_errors(f"cannot lock {path}"):
            is_ours = shared or block_device.try_lock(fd)
    except BaseException:
        os.close(fd)
        raise
    if not is_ours:
        os.close(fd)
        raise BusyError(f"{path} is mounted elsewhere, or being formatted by a process of an earlier run")
    return fd


def format_image(fd: int, path: Path, record: VolumeRecord) -> None:
    """Make the file system of a volume in state new, unless it was used already: then it stays.

    What an interrupted mkfs of ours left is made again. Raises: PreconditionError when foreign content is on it,
    HostError.
    """
    with host_errors(f"cannot prepare {path}"):
        is_pristine = device.is_pristine(fd)
        if not is_pristine and not must_format(fd, str(path), record):
            return
        if not is_pristine or os.fstat(fd).st_size != record.length:
            os.ftruncate(fd, 0)
            _extend(fd, record)
    template = _templates.find(record.length, record.mkfs) if record.fstype == "ext4" else None
    with host_errors(f"cannot write {path}"):
        if template is not None:
            template.apply(fd, record.uuid)
        elif not _copied(fd, record):
            _mkfs(fd, record)
        os.fsync(fd)


def _copied(fd: int, record: VolumeRecord) -> bool:
    """Run mkfs on a file in memory and copy that. False where that is impossible. Raises: HostError, OSError."""
    if record.fstype != "ext4" or record.length > _IN_MEMORY_MOST:
        return False
    try:
        memory = os.memfd_create("mkfs", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        os.ftruncate(memory, record.length)
        _run_mkfs(memory, record)
        ext4_template.copy(memory, fd)
        _templates.learn(record.length, record.mkfs, memory)
    except CommandError as failure:
        if _is_old(failure):
            return False  # it would fill the memory with zeros
        raise
    else:
        return True
    finally:
        os.close(memory)


def _run_mkfs(fd: int, record: VolumeRecord, *, prezeroed: bool = True) -> None:
    """Run mkfs on an open file. Raises: CommandError."""
    command = form_of(record.fstype, record.mkfs).mkfs(f"/dev/fd/{fd}", record.length, record.uuid, prezeroed=prezeroed)
    with _mkfs_at_once:
        run(command, timeout=_MKFS_TIMEOUT, pass_fds=(fd,))


def _mkfs(fd: int, record: VolumeRecord) -> None:
    try:
        _run_mkfs(fd, record)
    except CommandError as failure:
        if not _is_old(failure):
            raise
        _run_mkfs(fd, record, prezeroed=False)


def _is_old(failure: CommandError) -> bool:
    """Whether mkfs.ext4 is of e2fsprogs before 1.47, which does not know assume_storage_prezeroed."""
    return "prezeroed" in failure.stderr


def fill_image(fd: int, path: Path, record: VolumeRecord) -> None:
    """Populate the new file system of an image from its class's source, before it is in use.

    After a kill it is populated again; a used one is left alone. Raises: ExhaustedError, OutOfRangeError,
    PreconditionError, InvalidError, HostError.
    """
    if record.from_folder:
        with closing(loop.attach(fd, str(path))) as attached:
            block_device.fill(attached.path, record)
        with host_errors(f"cannot write {path}"):
            os.fsync(fd)


def mount_image(fd: int, path: Path, record: VolumeRecord, target: Path, options: Sequence[str]) -> None:
    """Attach and mount a formatted image. The loop device detaches itself with the last mount. Raises: HostError."""
    with closing(loop.attach(fd, str(path))) as attached:
        _mount_device(attached.path, record, target, options)


def mount_attached(path: Path, record: VolumeRecord, target: Path, options: Sequence[str]) -> bool:
    """Mount a formatted image from the loop device that still has it, unmounted here; whether there is one.

    Who makes a mount namespace while a volume is mounted, as at the start of a container, has a copy of the mount. The
    copy keeps the device after our last umount. One device has one file system, however often it is mounted. Raises
    HostError.
    """
    for index in loop.of_file(path):
        node = loop.device(index)
        with host_errors(f"cannot open {node}"), ignore_errno(errno.ENOENT, errno.ENXIO), opened(node):
            # It stays attached while it is open here, so this is still so when it is mounted.
            is_ours = loop.backs(index, path) and loop.is_autoclear(index) and not loop.is_readonly(index)
            if is_ours and node not in block_device.shown():
                with closing_fd(open_image(path, shared=True)) as fd:
                    fill_holes(fd, path, record)
                loop.set_capacity(index)
                _mount_device(node, record, target, options)
                return True
    return False


def _mount_device(node: str, record: VolumeRecord, target: Path, options: Sequence[str]) -> None:
    # What a pod deletes is handed back to the disk at once, unless it has to be overwritten first.
    hands_back = record.sparse and erase_of(record.volume().effective) not in OVERWRITES
    block_device.mount_at(node, record, target, (*(("discard",) if hands_back else ()), *options))


def fill_holes(fd: int, path: Path, record: VolumeRecord) -> None:
    """Allocate the holes that a discard inside the volume punched into a thick image; they stayed reserved.

    Raises: HostError.
    """
    with host_errors(f"cannot allocate {path}"):
        if not record.sparse and os.fstat(fd).st_blocks * 512 < record.length:
            os.posix_fallocate(fd, 0, record.length)


def is_used(path: Path, *, wait: bool = True) -> bool:
    """Whether anything has the file open: a loop device, so a mount in any namespace, or an orphaned mkfs.

    wait: unless it is mounted, retry for a quarter of a second, for a process that is about to close it. It tests with
    a file lease (fcntl F_SETLEASE), which the kernel grants only on a file that is open nowhere else. Raises:
    HostError.
    """
    with (
        host_errors(f"cannot open {path}"),
        ignore_errno(errno.ENOENT),
        opened(path, os.O_RDWR | os.O_NOFOLLOW) as fd,
    ):
        for _ in block_device.attempts() if wait else range(1):
            try:
                # An open() elsewhere breaks the lease by SIGIO, which kills by default.
                fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            except BlockingIOError:
                if wait and _is_mounted(path):
                    return True
            except OSError:  # a file system without leases: ask the loop devices
                return bool(loop.of_file(path))
            else:
                return False
        return True
    return False


def _is_mounted(path: Path) -> bool:
    """Whether a visible mount shows the image; others may, in other mount namespaces."""
    return any(block_device.has_mount(loop.device(index)) for index in loop.of_file(path))


def remove(path: Path) -> None:
    """Remove the file, whose bytes are free when this returns. Idempotent. Raises: HostError."""
    with host_errors(f"cannot remove {path}"), suppress(FileNotFoundError):
        with suppress(OSError), opened(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as fd:
            if os.fstat(fd).st_nlink == 1:
                os.ftruncate(fd, 0)  # xfs frees the blocks of a removed file a moment later
        os.unlink(path)


def shows(image: Path, path: Path) -> bool:
    """Whether the mount at path is of that image, also one whose file system has shut down. Raises: HostError."""
    if (index := loop.index_of(mount.device_at(path))) is not None:
        return loop.backs(index, image)
    real = str(path.resolve())  # btrfs has device numbers of its own
    for entry in mount.mounts():
        if entry.target == real and entry.source.startswith("/dev/loop"):
            return loop.backs(int(entry.source.removeprefix("/dev/loop")), image)
    return False
