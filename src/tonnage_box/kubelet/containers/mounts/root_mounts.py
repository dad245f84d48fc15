"""Mounts in the root of a container: its volumes, devices and files, put where their paths lead inside it.

bwrap has made the root, of which no part is a volume, and no process of the container runs. What is mounted comes as
detached copies, and mount points are made below descriptors of the root, so no symlink leads out of it. What is the
machine's is read-only in there: to make a mount point in it, an overlay in memory goes on top. Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import HostError, InvalidError, TonnageError, host_errors
from tonnage.host import mount
from tonnage.host.descriptor import closing, opened
from tonnage.host.mount import Mount
from tonnage.host.nofollow import by_fd
from tonnage_box.kubelet.containers.mounts import mount_point
from tonnage_box.kubelet.containers.mounts.mount_point import in_root
from tonnage_box.kubelet.containers.rootfs import Bind

_SAFE = ("nosuid", "nodev")
_NAME = "tonnage-mount-points"
"""The source of overlays in mountinfo."""
_MUST_STAY = "it leads to {}, a part of the root that must stay; mount it elsewhere"
_LEVEL = ("mode=755", "size=1m", *_SAFE)
"""Of the tmpfs that holds new mount points in the machine's folders."""


@dataclass(frozen=True)
class DetachedBind:
    """A bind that is mounted nowhere yet. tree: a descriptor of its root; folder: whether that is a folder."""

    bind: Bind
    tree: int
    folder: bool

    @property
    def name(self) -> str:
        """What the pod calls it."""
        return f"{'devicePath' if self.bind.device else 'mountPath'} {self.bind.target!r}"


@contextmanager
def detached(binds: Iterable[Bind]) -> Iterator[list[DetachedBind]]:
    """Copies of what the binds mount, which end with the body unless they are mounted. Raises: HostError."""
    with ExitStack() as stack:
        yield [_copy(bind, stack) for bind in binds]


def _copy(bind: Bind, stack: ExitStack) -> DetachedBind:
    read_only = bind.read_only and not bind.nests
    options = ["nosuid", *([] if bind.device else ["nodev"]), *(["ro"] if read_only else [])]
    try:
        tree = stack.enter_context(closing(mount.clone(bind.source, options)))
    except OSError as failure:
        if failure.errno == errno.ENOSYS:
            raise HostError(mount_point.NEEDS) from failure
        raise HostError(f"{bind.source}: it cannot be mounted at {bind.target}: {failure.strerror}") from failure
    return DetachedBind(bind, tree, stat.S_ISDIR(os.fstat(tree).st_mode))


class RootMounts:
    """Completes one root. Its methods run in the container's mount namespace."""

    def __init__(self, root: int, pid: int, taken: Sequence[str]) -> None:
        """root: an open directory; pid: of a process in there; taken: real paths that nothing may cover."""
        self._root = root
        self._table = Path(f"/proc/{pid}/mountinfo")
        self._taken = taken
        self._machine = {(m.device, m.root) for m in self._mounts() if m.target != "/" and not _is_made(m.target)}
        self._placed: dict[str, str] = {}
        self._covered = False

    def complete(self, detached: Sequence[DetachedBind], working_dir: str, *, read_only: bool) -> None:
        """Mount all, the outer ones first, and make the working directory. read_only: of the root itself.

        Raises: InvalidError (something else is there, or must stay), HostError.
        """
        for one in sorted(detached, key=self._depth):
            self._mount(one)
        if working_dir:
            self._make_folder(working_dir)
        with host_errors("the container's root cannot be made read-only"):
            for one in detached:
                if one.bind.read_only and one.bind.nests:
                    mount.set_options(one.tree, ["ro"])
            if self._covered:
                self._close_levels()
            if read_only:
                mount.set_options(self._root, ["ro"])

    def _depth(self, one: DetachedBind) -> int:
        with _named(one.name):
            return mount_point.real_path(self._root, one.bind.target).count("/")

    def _check(self, real: str) -> None:
        if real in self._taken or real.startswith("/proc/"):
            raise InvalidError(_MUST_STAY.format(real))
        if real in self._placed:
            raise InvalidError(
                f"it leads to {real}, where {self._placed[real]} is mounted; mount one of them elsewhere"
            )

    def _mount(self, one: DetachedBind) -> None:
        with _named(one.name):
            path = mount_point.place(self._root, one.bind.target, folder=one.folder, make=self._make)
            with closing(in_root(self._root, path)) as at:
                real = mount_point.path_of(self._root, at)  # another container may have moved it meanwhile
                self._check(real)
                mount.attach(one.tree, at)
        self._placed[real] = one.name

    def _make_folder(self, path: str) -> None:
        """Make a working directory. In /proc and /dev there is nothing to make."""
        with _named(f"workingDir {path!r}"):
            if not _is_made(mount_point.real_path(self._root, path)):
                mount_point.place(self._root, path, folder=True, make=self._make)

    def _make(self, folder: str, name: str, kind: int) -> None:
        if folder == "/proc" or folder.startswith("/proc/"):
            raise InvalidError(_MUST_STAY.format(f"{folder}/{name}"))
        try:
            mount_point.create(self._root, folder, name, kind)
        except OSError as failure:
            if failure.errno != errno.EROFS:
                raise
            with closing(in_root(self._root, folder)) as at:
                if not self._is_machines(at):
                    raise InvalidError(
                        f"{folder} is mounted read-only and has no {name}; make it there before"
                    ) from failure
                self._cover(at, mount_point.path_of(self._root, at))
            mount_point.create(self._root, folder, name, kind)

    def _is_machines(self, at: int) -> bool:
        """Whether an open folder is in one of the mounts that bwrap has made of the machine's, or in a copy of it."""
        number = mount.mount_id(at)
        return any(m.mount_id == number and (m.device, m.root) in self._machine for m in self._mounts())

    def _cover(self, at: int, folder: str) -> None:
        """Put an overlay on a folder of the machine, in which mount points can be made. Raises: HostError."""
        advice = "mount it elsewhere"
        with ExitStack() as stack, host_errors(f"{folder} is this machine's, and no overlay hides it", advice=advice):
            within = {path: stack.enter_context(closing(self._copy(path))) for path in self._mounted_in(folder)}
            level = stack.enter_context(closing(mount.detached("tmpfs", "tmpfs", _LEVEL)))
            mount.attach(level, at)  # hidden by the overlay, which takes folders of this namespace only
            upper, work = (stack.enter_context(_folder(level, name, os.fstat(at))) for name in ("upper", "work"))
            where = (f"lowerdir={by_fd(at)}", f"upperdir={by_fd(upper)}", f"workdir={by_fd(work)}")
            mount.attach(stack.enter_context(closing(mount.detached(_NAME, "overlay", [*_SAFE, *where]))), at)
            self._covered = True
            for path, tree in within.items():
                mount.attach(tree, stack.enter_context(closing(in_root(self._root, path))))

    def _close_levels(self) -> None:
        """Make all overlays read-only. Those that a later one hides are so already, to everybody."""
        for level in [m for m in self._mounts() if m.source == _NAME]:
            with closing(in_root(self._root, level.target)) as at:
                if mount.mount_id(at) == level.mount_id:
                    mount.set_options(at, ["ro"])

    def _copy(self, path: str) -> int:
        with closing(in_root(self._root, path)) as at:
            return mount.clone(at)

    def _mounted_in(self, folder: str) -> list[str]:
        """Paths at which something is mounted below folder; not what is mounted below those."""
        found: list[str] = []
        paths = {m.target for m in self._mounts() if m.target.startswith(f"{folder}/")}
        for path in sorted(paths, key=lambda path: path.split("/")):
            if not found or not path.startswith(f"{found[-1]}/"):
                found.append(path)
        return found

    def _mounts(self) -> Iterator[Mount]:
        with host_errors("cannot read the table of a container's mounts"):
            return mount.parse(os.fsdecode(self._table.read_bytes()))


def _is_made(path: str) -> bool:
    """Whether a path is in /proc or /dev, which are new and not the machine's."""
    return path in ("/proc", "/dev") or path.startswith(("/proc/", "/dev/"))


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise HostError(f"{what}: it cannot be made: {failure.strerror}") from failure
    except TonnageError as failure:
        raise type(failure)(f"{what}: {failure}") from failure


@contextmanager
def _folder(parent: int, name: str, like: os.stat_result) -> Iterator[int]:
    """A new, open folder with the owner and mode of another."""
    os.mkdir(name, dir_fd=parent)
    with opened(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent) as fd:
        os.fchown(fd, like.st_uid, like.st_gid)
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
        yield fd
