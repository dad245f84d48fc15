"""Bubblewrap runtime: containers as processes of this machine, each in a private root.

Crash-only: a container's folder (`pods/<uid>/containers/<name>/<attempt>`) is made first; state.json is written after
the process was started. A folder without state.json was left by a kubelet that was killed in between: if its process is
found, it is killed, and the container counts as never started.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import HostError, InvalidError, TonnageError, UnsupportedError
from tonnage.host.descriptor import closing, opened
from tonnage.host.encoding import encode
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.pods import Container, Pod, VolumeMount
from tonnage.storage.images.store import ImageRecord, ImageStore
from tonnage_box.api import pod_fields, pod_security
from tonnage_box.kubelet.containers import context, env, exec_process, rootfs, seccomp, termination
from tonnage_box.kubelet.containers.exec_process import CommandStarter
from tonnage_box.kubelet.containers.log_writer import LogFile, LogPump
from tonnage_box.kubelet.containers.mounts import mount_namespace, root_mounts
from tonnage_box.kubelet.containers.mounts.root_mounts import DetachedBind, RootMounts
from tonnage_box.kubelet.containers.paths import Paths, component
from tonnage_box.kubelet.containers.process import (
    ROOT,
    STATE,
    STATUS,
    ContainerProcess,
    ProcessState,
    boot_id,
    first_process,
    running_in,
    stat_fields,
)
from tonnage_box.kubelet.containers.rootfs import Bind
from tonnage_box.kubelet.containers.runtime import ContainerSpec, FoundProcess, Mounted, OnExit, RunningContainer
from tonnage_box.kubelet.containers.spawn import ContainerPrograms, spawn
from tonnage_box.kubelet.containers.start import keeper, program
from tonnage_box.kubelet.containers.start.gate import Gate
from tonnage_box.kubelet.containers.start.machine_code import MACHINES
from tonnage_box.kubelet.containers.start.program import StartPlan
from tonnage_box.kubelet.containers.stdio import Stdio
from tonnage_box.kubelet.folder import make_folder, names, remove_tree
from tonnage_box.kubelet.images import image_root, image_user
from tonnage_box.kubelet.images.image_user import Accounts
from tonnage_box.kubelet.images.node_images import NO_IMAGES, NodeImages
from tonnage_box.kubelet.pod_cgroups import PodCgroups
from tonnage_box.kubelet.pods import network_files
from tonnage_box.kubelet.volumes import subpaths

log = logging.getLogger(__name__)
_PIPES = {"stdout": "out", "stderr": "err"}
_END_SECONDS = 10.0
_PAUSES = (0.01, 0.05, 0.2)  # seconds
PIDS_LIMIT = 4096
"""Processes and threads of a pod together (podPidsLimit of a kubelet, which has none by default)."""
_ATTEMPTS = 2
"""Attempts whose folder and log stay: the current one and the one before."""


class BubblewrapRuntime:
    """Runs containers below root, the kubelet's folder. pids_limit: processes and threads of a pod."""

    name = "bwrap"
    note = "Images are not pulled here: the command runs from this machine's /usr, whatever the image is named"

    def __init__(
        self, root: Path, clock: Clock, images: NodeImages = NO_IMAGES, *, pids_limit: int = PIDS_LIMIT
    ) -> None:
        self._pids_limit = pids_limit
        self.paths = Paths(root)
        self.images = images
        self._clock = clock
        self.cgroups = PodCgroups()
        self._starter = CommandStarter()
        self.program = shutil.which("bwrap") or "bwrap"
        self.boot = boot_id()
        self._processes: dict[str, ContainerProcess] = {}

    @staticmethod
    def missing(program: str = "bwrap") -> list[str]:
        """What this machine lacks to run containers; empty if nothing."""
        lacks = [] if os.geteuid() == 0 else ["root"]
        if shutil.which(program) is None:
            lacks.append(f"{program} (package bubblewrap)")
        if (machine := os.uname().machine) not in MACHINES:
            lacks.append(f"a processor of {' or '.join(MACHINES)}: it is {machine}")
        return lacks

    async def prepare(self, uid: str) -> None:
        """See Runtime: the pod's cgroup, below the one of all our pods."""
        await asyncio.to_thread(self.make_group, uid)

    def make_group(self, uid: str) -> None:
        """As prepare(). Blocking."""
        make_folder(self.paths.pod(uid))  # before the group, so that after a kill the pod is known and it is removed
        try:
            self.cgroups.make_pod(uid).limit_processes(self._pids_limit)
        except (UnsupportedError, OSError) as failure:
            log.debug("no cgroup for a pod pod=%s error=%s", uid, failure)

    async def start(self, spec: ContainerSpec, on_exit: OnExit) -> ContainerProcess:
        """See Runtime."""
        plan = _Plan(self, spec)
        try:
            process, pidfd = await asyncio.to_thread(plan.execute, self._clock, on_exit)
        except OSError as failure:
            name = spec.container.name
            if lacks := self.missing(self.program):
                raise HostError(f"cannot start container {name}: this machine lacks {', '.join(lacks)}") from failure
            raise HostError(f"cannot start container {name}: {failure.strerror or failure}") from failure
        self._processes[process.id] = process
        process.watch(pidfd)
        return process

    async def run(
        self, where: RunningContainer, argv: Sequence[str], *, timeout: float | None, limit: int
    ) -> tuple[int, bytes]:
        """See Runtime."""
        process = self._processes.get(where.process.id)
        if process is None:
            raise HostError(f"container {where.container.name}: no command runs in it: it does not run")
        async with self._starter.command(where.pod.metadata.uid, process, argv) as running:
            return await exec_process.run(running, timeout=timeout, limit=limit)

    async def adopt(self, uid: str, pod: Pod | None, on_exit: OnExit) -> list[FoundProcess]:
        """See Runtime."""
        found = []
        base = self.paths.containers(uid)
        for name in sorted(names(base)):
            attempts = sorted(int(a) for a in names(f"{base}/{name}") if a.isdigit())
            for attempt in attempts:
                process = self._adopt(f"{base}/{name}/{attempt}", on_exit)
                if process is not None:
                    found.append(FoundProcess(name, attempt, process))
        return found

    def _adopt(self, folder: str, on_exit: OnExit) -> ContainerProcess | None:
        try:
            with open(f"{folder}/{STATE}", "rb") as file:
                state = msgspec.json.decode(file.read(), type=ProcessState)
        except (FileNotFoundError, msgspec.MsgspecError):  # emptied by a power cut, which ended the container too
            try:
                _kill_unknown(folder)
                _discard(folder)
            except (TonnageError, OSError) as failure:
                log.warning("container without a record stays folder=%s error=%s", folder, failure)
            return None
        pidfd = self._alive(state)
        has_pipes = state.boot == self.boot and os.path.exists(f"{folder}/{keeper.PIPE}")
        pump = _pump(folder, state.log) if has_pipes or pidfd is not None else None
        process = ContainerProcess(state, folder, self._clock, on_exit, pump=pump)
        if pidfd is None:
            if state.boot == self.boot and process.kill_rest():
                self._processes[state.id] = process
            else:
                process.close_output()
                process.ended = process.read_end(None)
            return process
        self._processes[state.id] = process
        process.watch(pidfd)
        return process

    def _alive(self, state: ProcessState) -> int | None:
        """A pidfd of the container's process if that still is the process which we started."""
        if state.boot != self.boot:
            return None
        try:
            pidfd = os.pidfd_open(state.pid)
        except OSError:
            return None
        # Looked at after the pidfd was made: from here on the pid cannot be another's.
        fields = stat_fields(state.pid)
        if fields is None or fields[1] != state.ticks:
            os.close(pidfd)
            return None
        return pidfd

    async def release(self, uid: str) -> None:
        """See Runtime: the bind mounts of subPaths."""
        folder = self.paths.subpaths(uid)
        if os.path.isdir(folder):
            await asyncio.to_thread(subpaths.remove, folder)

    async def clean(self, uid: str) -> None:
        """See Runtime: what containers wrote into their roots, and the cgroup."""
        await asyncio.to_thread(self._clean, uid)

    def _clean(self, uid: str) -> None:
        base = self.paths.containers(uid)
        for attempt in (f"{base}/{name}/{number}" for name in names(base) for number in names(f"{base}/{name}")):
            _settle(attempt)
        for pause in (*_PAUSES, None):
            try:
                self.cgroups.remove_pod(uid)
            except OSError as failure:  # the kernel still counts processes that have just been killed
                if pause is None:
                    log.warning("cgroup of a pod not removed pod=%s error=%s", uid, failure)
                else:
                    time.sleep(pause)
            else:
                return

    async def forget(self, uid: str) -> None:
        """See Runtime: containers' folders and logs."""
        prefix = f"{self.paths.containers(uid)}/"
        for key in [k for k, p in self._processes.items() if p.folder.startswith(prefix)]:
            del self._processes[key]
        logs = [f"{self.paths.logs}/{n}" for n in names(self.paths.logs) if n.endswith(f"_{component(uid)}")]
        for folder in (self.paths.containers(uid), *logs):
            if os.path.isdir(folder):
                await asyncio.to_thread(remove_tree, folder)

    async def close(self) -> None:
        """See Runtime."""
        self._starter.close()
        for process in self._processes.values():
            process.release()
        self._processes.clear()

    def mounts(self, spec: ContainerSpec, *, in_image: bool = False) -> list[Bind]:
        """Volume mounts of the container. Makes the bind mounts of subPaths. Raises: InvalidError, UnsupportedError."""
        binds = []
        for index, mount in enumerate(spec.container.volume_mounts):
            binds.append(self._mount(spec, mount, index, in_image=in_image))
        for device in spec.container.volume_devices:
            source = _volume(spec.volumes, device.name)
            target = rootfs.target(device.device_path, "devicePath", in_image=in_image)
            binds.append(Bind(source.path, target, device=True))
        return binds

    def _mount(self, spec: ContainerSpec, mount: VolumeMount, index: int, *, in_image: bool) -> Bind:
        if mount.mount_propagation not in (None, "None"):
            raise UnsupportedError(f"mountPropagation {mount.mount_propagation} of {mount.mount_path} is not supported")
        volume = _volume(spec.volumes, mount.name)
        read_only = mount.read_only or volume.read_only
        target = rootfs.target(mount.mount_path, in_image=in_image)
        part = env.expand(mount.sub_path_expr, spec.environment) or mount.sub_path
        if not part:
            if not os.path.exists(volume.path):
                raise HostError(f"volume {mount.name}: {volume.path} does not exist on this machine")
            return Bind(volume.path, target, read_only, nests=volume.is_written_here)
        name = f"{component(mount.name)}/{component(spec.container.name)}/{index}"
        place = f"{self.paths.subpaths(spec.pod.metadata.uid)}/{name}"
        return Bind(subpaths.bind(volume.path, part, place, read_only=read_only), target, read_only)


class _Command(NamedTuple):
    """What a container sees, bwrap's options, what it runs, and as whom. failure: why it is known not to start."""

    binds: list[Bind]
    options: list[str]
    argv: list[str]
    who: rootfs.User
    variables: dict[str, str]
    working_dir: str
    failure: str = ""
    in_image: bool = False

    def starter(self, gate: int, *, terminal: bool, capabilities: int) -> bytes:
        """The program that bwrap runs, which becomes the user and then the command. Raises: as program.build."""
        who, path = self.who, self.variables["PATH"]
        plan = StartPlan(who.uid, who.gid, who.groups, self.argv, path, capabilities, self.working_dir, terminal, gate)
        return program.build(plan)


class _Plan:
    """One start of a container. Runs in a thread."""

    def __init__(self, runtime: BubblewrapRuntime, spec: ContainerSpec) -> None:
        meta, name = spec.pod.metadata, spec.container.name
        paths = runtime.paths
        self._runtime = runtime
        self._spec = spec
        self._base = f"{paths.containers(meta.uid)}/{component(name)}"
        self._folder = f"{self._base}/{spec.attempt}"
        logs = paths.pod_logs(meta.namespace, meta.name, meta.uid)
        self._logs = f"{logs}/{component(name)}"
        self._log = f"{self._logs}/{spec.attempt}.log"
        self._image: ImageRecord | None = None
        inner, outer = spec.container.security_context, spec.pod.spec.security_context
        self._capabilities = pod_security.granted(inner.capabilities or {})
        self._hostname = network_files.hostname(spec.pod)
        self._unconfined = (inner.seccomp_profile or outer.seccomp_profile or {}).get("type") == "Unconfined"

    def execute(self, clock: Clock, on_exit: OnExit) -> tuple[ContainerProcess, int]:
        """Start the container; its process and a pidfd of it.

        Raises: InvalidError, UnsupportedError, HostError, OSError.
        """
        _admit(self._spec.pod, self._spec.container)
        self._runtime.make_group(self._spec.pod.metadata.uid)
        found = self._runtime.images.find(self._spec.container)
        if found is not None:
            command = self._from_image(*found)
        else:
            command = self.arguments()
            self._make()
            if command.failure:
                termination.write(self._folder, command.failure)
            rootfs.populate(f"{self._folder}/{ROOT}", command.who, self._network())
        own = context.of(
            command.who,
            command.variables,
            working_dir=command.working_dir,
            capabilities=self._capabilities,
            unconfined=self._unconfined,
        )
        context.save(self._folder, own)
        return self._spawn(command, clock, on_exit)

    def _variables(self, who: rootfs.User, image: Sequence[str] = ()) -> dict[str, str]:
        """The container's environment: what each has, the image's, the container's own."""
        spec = self._spec
        return {
            "PATH": rootfs.PATH,
            "HOME": who.home_folder,
            "HOSTNAME": self._hostname,
            **({"TERM": "xterm"} if spec.container.tty else {}),
            **dict(text.split("=", 1) for text in image),
            **spec.environment,
        }

    def _from_image(self, store: ImageStore, record: ImageRecord) -> _Command:
        """As arguments(), for a root of an image, which is made first: what runs and as whom is read in it."""
        spec, pod, container, folder = self._spec, self._spec.pod, self._spec.container, self._folder
        binds = self._runtime.mounts(spec, in_image=True)
        binds += self._termination(in_image=True)
        self._image = record
        self._make()
        self._image = record = image_root.make(folder, store, container.image)
        files = [image_root.read(folder, path, image_user.MAX_FILE) for path in ("/etc/passwd", "/etc/group")]
        who = image_user.user(pod, container, record.config.user or "", Accounts(*files))
        config = record.config
        variables = self._variables(who, config.env or ())
        argv = env.image_arguments(container, spec.environment, config)
        _check(variables, argv)
        working_dir = _working_dir(container.working_dir or config.working_dir or "")
        image_root.prepare(folder, self._network())
        options = rootfs.arguments(name=self._hostname, environment=variables, in_image=True)
        return _Command(binds, options, argv, who, variables, working_dir, in_image=True)

    def arguments(self) -> _Command:
        """How a container starts that uses the machine's programs.

        Raises: InvalidError, UnsupportedError, HostError.
        """
        spec, pod, container = self._spec, self._spec.pod, self._spec.container
        who = rootfs.user(pod.spec.security_context, container.security_context)
        variables = self._variables(who)
        argv = env.arguments(container, spec.environment)
        _check(variables, argv)
        working_dir = _working_dir(container.working_dir)
        binds = self._runtime.mounts(spec)
        binds += self._termination()
        options = rootfs.arguments(name=self._hostname, environment=variables)
        failure = env.why_not_found(container, argv[0], variables["PATH"])
        return _Command(binds, options, argv, who, variables, working_dir, failure)

    def _network(self) -> dict[str, bytes]:
        return network_files.files(self._spec.pod, rootfs.machines_resolv_conf())

    def _termination(self, *, in_image: bool = False) -> list[Bind]:
        """Where the container writes its termination message. Raises: InvalidError."""
        path = self._spec.container.termination_message_path or termination.DEFAULT_PATH
        target = rootfs.target(path, "terminationMessagePath", in_image=in_image)
        return [Bind(termination.path(self._folder), target)]

    def _make(self) -> None:
        """Create the container's folder; removes those of older attempts."""
        attempt = self._spec.attempt
        if os.path.isdir(self._folder):
            _discard(self._folder)
        for name in names(self._base):
            if name.isdigit() and int(name) <= attempt - _ATTEMPTS:
                _discard(f"{self._base}/{name}")
                for file in (f"{name}.log", f"{name}.log.1"):
                    with suppress(FileNotFoundError):
                        os.unlink(f"{self._logs}/{file}")
            elif name.isdigit() and int(name) < attempt:
                _settle(f"{self._base}/{name}")
        os.makedirs(self._folder if self._image is not None else f"{self._folder}/{ROOT}", mode=0o755)
        os.chmod(self._folder, 0o700)
        for pipe in _PIPES.values():
            os.mkfifo(f"{self._folder}/{pipe}", 0o600)
        termination.make(self._folder)

    def _spawn(self, command: _Command, clock: Clock, on_exit: OnExit) -> tuple[ContainerProcess, int]:
        stdio = Stdio.open(self._spec.container, command.who.uid, [f"{self._folder}/{p}" for p in _PIPES.values()])
        tty, keeping = self._spec.container.tty, 0
        pump = _pump(self._folder, self._log, terminal=stdio.stdin if tty else -1)
        try:
            keeping = 0 if tty else keeper.start(self._folder, *stdio.theirs[1:])
            child = self._started(command, stdio.theirs)
        except (OSError, TonnageError):
            pump.close()
            stdio.close()
            if keeping:
                keeper.end(self._folder)
                os.waitpid(keeping, 0)
            raise
        finally:
            stdio.close_theirs()
        pidfd = os.pidfd_open(child.pid)
        fields = stat_fields(child.pid)
        of_image = self._image.config.stop_signal if self._image is not None else None
        state = ProcessState(
            f"{self._spec.pod.metadata.uid}-{self._spec.container.name}-{self._spec.attempt}-{secrets.token_hex(4)}",
            child.pid,
            fields[1] if fields is not None else 0,
            self._runtime.boot,
            clock.time(),
            self._log,
            self._image.image_id if self._image is not None else "",
            _signal((self._spec.container.lifecycle or {}).get("stopSignal") or of_image),
            self._spec.container.termination_message_policy == termination.FALLBACK,
        )
        _save(f"{self._folder}/{STATE}", state)
        process = ContainerProcess(state, self._folder, clock, on_exit, child=child, pump=pump, stdin=stdio.stdin)
        process.keeping = keeping
        return process, pidfd

    def _started(self, command: _Command, streams: tuple[int, int, int]) -> subprocess.Popen[bytes]:
        """bwrap, with a command that runs in its whole root. Raises: InvalidError, HostError, OSError."""
        status = os.open(f"{self._folder}/{STATUS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with closing(status), Gate() as gate, root_mounts.detached(command.binds) as detached:
            fcntl.flock(status, fcntl.LOCK_EX)  # bwrap has it from its fork to its end, see _kill_unknown()
            tty = self._spec.container.tty
            filter_program = seccomp.program(os.uname().machine, unconfined=self._unconfined)
            starter = command.starter(gate.theirs, terminal=tty, capabilities=self._capabilities)
            child = spawn(
                [self._runtime.program, "--bind", f"{self._folder}/{ROOT}", "/", "--json-status-fd", str(status)],
                command.options,
                command.argv,
                streams=streams,
                keep=(status, gate.theirs),
                programs=ContainerPrograms(starter, filter_program),
                group=self._runtime.cgroups.own_pod(self._spec.pod.metadata.uid),
            )
            try:
                if gate.reached():  # else bwrap has failed, and its words are in the log
                    self._complete(command, child.pid, detached)
                    gate.open()
            except BaseException:
                gate.close()
                _end(child, self._folder)
                raise
        return child

    def _complete(self, command: _Command, bwrap: int, detached: Sequence[DetachedBind]) -> None:
        """Mount the volumes in the root that bwrap has made. Raises: InvalidError, HostError, OSError."""
        first = first_process(self._folder, bwrap)
        if first is None:
            raise HostError(f"container {self._spec.container.name}: it has ended before its volumes were mounted")
        read_only = bool(self._spec.container.security_context.read_only_root_filesystem)
        taken = rootfs.taken(in_image=command.in_image)

        def work(root: int) -> None:
            RootMounts(root, first, taken).complete(detached, command.working_dir, read_only=read_only)

        with closing(os.pidfd_open(first)) as pidfd:
            mount_namespace.visit(pidfd, f"{self._folder}/{ROOT}", work)


def _admit(pod: Pod, container: Container) -> None:
    """Reject by name what the container asks for and the box cannot do. Raises: UnsupportedError, HostError."""
    found = pod_fields.rejection(to_builtins(pod.spec), to_builtins(container))
    if found is not None:
        raise HostError(found.text) if found.by_runtime else UnsupportedError(found.text)


def _end(child: subprocess.Popen[bytes], folder: str) -> None:
    """Wait for the end of a bwrap whose command was not let in; kill what does not end."""
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        _kill_unknown(folder)


def _save(path: str, state: ProcessState) -> None:
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.encode(state))
    os.rename(f"{path}.new", path)


def _pump(folder: str, path: str, *, terminal: int = -1) -> LogPump:
    return LogPump({name: f"{folder}/{pipe}" for name, pipe in _PIPES.items()}, LogFile(path), terminal=terminal)


def _check(variables: Mapping[str, str], argv: Sequence[str]) -> None:
    """Name the variable or argument that cannot be given to a program, before anything is made.

    Raises: InvalidError.
    """
    for key, value in variables.items():
        encode(key, f"name of variable {key!r}")
        encode(value, f"value of variable {key}")
    for index, text in enumerate(argv):
        encode(text, "command" if index == 0 else f"argument {index} of the command")


def _volume(volumes: Mapping[str, Mounted], name: str) -> Mounted:
    found = volumes.get(name)
    if found is None:
        raise InvalidError(f"there is no volume {name!r} in the pod")
    return found


def _signal(name: str | None) -> int:
    """A signal by name or number, as images have it; SIGTERM for one that is not known."""
    text = (name or "").upper()
    if text.isascii() and text.isdigit() and int(text) in signal.valid_signals():
        return int(text)
    found = signal.Signals.__members__.get(text if text.startswith("SIG") else f"SIG{text}", signal.SIGTERM)
    return int(found)


def _working_dir(path: str) -> str:
    encode(path, "workingDir")
    if path and (not path.startswith("/") or ".." in path.split("/")):
        raise InvalidError(f"workingDir {path!r}: want an absolute path without '..'")
    return os.path.normpath("/" + path.strip("/")) if path else ""


def _settle(folder: str) -> None:
    """Remove what a container that has ended leaves behind, but for its message and how it ended."""
    try:
        keeper.await_end(folder)
        termination.end(folder)
        context.remove(folder)
        image_root.remove(folder)
    except OSError as failure:
        raise HostError(f"cannot clean up container folder {folder}: {failure.strerror}") from failure


def _discard(folder: str) -> None:
    _settle(folder)
    remove_tree(folder)


def _kill_unknown(folder: str, *, patience: float = _END_SECONDS) -> None:
    """Kill processes of a container that was started by a kubelet which died before it could note it.

    They are found by their command line, which a process that has been forked gets a moment later, with its exec. But
    it has the lock of its status file already: while that is held, one is still to come. patience: seconds.
    Raises: HostError, OSError.
    """
    root, late = f"{folder}/{ROOT}", time.monotonic() + patience
    while True:
        is_held = _is_locked(f"{folder}/{STATUS}")  # first: whoever gives it up later is found
        for pid in running_in(root):
            log.warning("killing a container without a record pid=%d root=%s", pid, root)
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        if not is_held:
            return
        if time.monotonic() > late:
            raise HostError(f"a process that was started for {root} does not end when killed")
        time.sleep(_PAUSES[0])


def _is_locked(file: str) -> bool:
    try:
        with opened(file, os.O_WRONLY | os.O_NOFOLLOW) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
