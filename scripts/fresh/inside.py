"""Runs commands in a bare system, as the first process of namespaces of its own (scripts/fresh/system.py starts it).

    python -m scripts.fresh.inside < PLAN

PLAN is a Plan as JSON. Prints lines of JSON: the devices that the system has files on, its Python, a result
for each step. The namespaces end with this process, and with them every process and every mount.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_PATHS = {
    "root": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "user": "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
}
_LEFT_SECONDS = 10.0
"""How long something may take to go away after a command has ended."""
_OLD_ROOT = "mnt"


@dataclass(frozen=True)
class Step:
    """A command. folder: where, in the home. user: "" for root. rejection: it cannot work, and has to say this.
    is_told: it gets a row."""

    command: str
    folder: str = ""
    user: str = ""
    rejection: str = ""
    is_told: bool = True


@dataclass(frozen=True)
class Plan:
    """image: the disk. repository: what to clone. files: path in the system -> text. environment: what package clients
    need. log: where the commands' output goes. is_tmp_in_memory: as Debian 13 has it."""

    image: str
    repository: str
    log: str
    steps: list[Step]
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    is_tmp_in_memory: bool = False


@dataclass(frozen=True)
class Result:
    """code: exit status. venv, packages: MB of .venv, and of the Debian packages that were added. left: what was still
    there when the command had ended. output: what it printed."""

    step: Step
    code: int
    seconds: float
    venv: float
    packages: float
    left: list[str]
    output: str


def main(plan: Plan) -> None:
    """Enter the system and run the steps; a step that is not told and fails ends it."""
    log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _enter(plan)
    print(json.dumps({"devices": sorted(_devices())}), flush=True)
    python = subprocess.check_output(["/usr/bin/python3", "--version"], text=True).strip()
    print(json.dumps({"python": python}), flush=True)
    for step in plan.steps:
        result = _run(step, plan, log)
        print(json.dumps(asdict(result)), flush=True)


def _enter(plan: Plan) -> None:
    root = "/mnt"
    _mount("-o", "loop", plan.image, root)
    bare = f"{root}/srv/tonnage.git"
    _check("git", "clone", "-q", "--bare", "--depth", "1", f"file://{plan.repository}", bare)
    _check("chown", "-R", "--reference", root + _home(plan.steps[0].user), bare)  # git rejects to clone a stranger's
    for path, text in plan.files.items():
        file = Path(root + path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("--rbind", "/sys", f"{root}/sys")
    _mount("-t", "devtmpfs", "devtmpfs", f"{root}/dev")
    for path in ("pts", "shm"):
        Path(f"{root}/dev/{path}").mkdir(exist_ok=True)
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", f"{root}/dev/pts")
    _mount("-t", "tmpfs", "tmpfs", f"{root}/dev/shm")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/run")
    if plan.is_tmp_in_memory:
        _mount("-t", "tmpfs", "tmpfs", f"{root}/tmp")
    os.chdir(root)
    _check("pivot_root", ".", _OLD_ROOT)
    os.chdir("/")
    _check("/usr/bin/umount", "--lazy", f"/{_OLD_ROOT}")
    socket.sethostname("fresh")


def _mount(*arguments: str) -> None:
    _check("mount", *arguments)


def _check(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _run(step: Step, plan: Plan, log: int) -> Result:
    mounts, packages = _mounts(), _packages()
    os.write(log, f"\n$ {step.command}   # {step.user or 'root'}\n".encode())
    begin = os.lseek(log, 0, os.SEEK_END)
    home = _home(step.user)
    owner = os.stat(home)
    begun = time.monotonic()
    process = subprocess.Popen(
        ["/bin/sh", "-c", step.command],
        cwd=f"{home}/{step.folder}",
        env={
            **plan.environment,
            "HOME": home,
            "USER": step.user or "root",
            "LOGNAME": step.user or "root",
            "SHELL": "/bin/bash",
            "PATH": _PATHS["user" if step.user else "root"],
        },
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        user=owner.st_uid,
        group=owner.st_gid,
        extra_groups=[],
        start_new_session=True,
    )
    code = _wait(process.pid)
    seconds = time.monotonic() - begun
    left = _left(mounts)
    with open(f"/proc/self/fd/{log}", "rb") as file:
        file.seek(begin)
        output = file.read().decode(errors="replace")
    return Result(step, code, seconds, _venv(home), _packages() - packages, left, output)


def _home(user: str) -> str:
    return f"/home/{user}" if user else "/root"


def _wait(pid: int) -> int:
    """The exit status of that child; reaps every orphan, as the first process of a system does."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _left(mounts: set[str]) -> list[str]:
    """What a command left: processes, mounts and loop devices, after the time that they may take to go."""
    until = time.monotonic() + _LEFT_SECONDS
    while True:
        _reap()
        left = [f"mount {mount}" for mount in sorted(_mounts() - mounts)]
        left += [f"process {pid}, {command}" for pid, command in _processes()]
        left += [f"loop device {name} of {file}" for name, file in loop_devices(_devices())]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _mounts() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def _processes() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(entry.name) != os.getpid():
            found.append((int(entry.name), command.replace(b"\0", b" ").decode(errors="replace").strip()))
    return sorted(found)


def _devices() -> set[str]:
    """Numbers of the devices on which the system can have files."""
    return {numbers(os.stat(path).st_dev) for path in ("/", "/tmp", "/run", "/dev/shm")}


def numbers(device: int) -> str:
    """A device's major and minor number, as util-linux prints them."""
    return f"{os.major(device)}:{os.minor(device)}"


def loop_devices(devices: set[str]) -> list[tuple[str, str]]:
    """Loop devices on files of these devices, and the files."""
    command = ["losetup", "--list", "--json", "--output", "NAME,BACK-MAJ:MIN,BACK-FILE"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = json.loads(text)["loopdevices"] if text else []  # nothing at all where there is none
    return [(loop["name"], loop["back-file"]) for loop in found if loop["back-maj:min"].strip() in devices]


def _packages() -> float:
    """MB of all installed Debian packages."""
    command = ["dpkg-query", "--show", "--showformat", "${Installed-Size}\n"]
    return sum(map(int, subprocess.check_output(command, text=True).split())) / 1000


def _venv(home: str) -> float:
    """MB of the clone's virtual environment, 0 where there is none."""
    command = ["du", "--summarize", "--block-size=1000000", f"{home}/tonnage/.venv"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return float(text.split()[0]) if text else 0.0


def read_plan(text: str) -> Plan:
    """The Plan that was written as JSON."""
    fields: dict[str, Any] = json.loads(text)
    return Plan(**{**fields, "steps": [Step(**step) for step in fields["steps"]]})


if __name__ == "__main__":
    main(read_plan(sys.stdin.read()))
