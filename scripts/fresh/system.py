"""Starts steps in a copy of a bare Debian, and leaves nothing of it."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.fresh import base
from scripts.fresh.base import Source
from scripts.fresh.inside import Plan, Result, Step, loop_devices, numbers

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
_INDEX = ("INDEX_URL", "EXTRA_INDEX_URL", "PROXY", "TRUSTED_HOST", "DEFAULT_TIMEOUT", "TIMEOUT", "RETRIES")
_NETWORK = {*_PROXIES, *map(str.upper, _PROXIES), *_CERTIFICATES, *(f"PIP_{name}" for name in _INDEX)}
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PR_SET_PDEATHSIG = 1
_GONE_SECONDS = 30.0


def network_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Of these variables those that package clients need to reach their registries."""
    return {name: value for name, value in environment.items() if name in _NETWORK}


def network_files(environment: Mapping[str, str], sources: list[Source]) -> dict[str, str]:
    """Path in the bare system -> text: with which settings this machine's package clients reach their registries."""
    settings = ["Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until", "Acquire::Check-Date"]
    apt = subprocess.run(["apt-config", "dump", *settings], capture_output=True, text=True, check=True).stdout
    keyring = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    lines = [f"deb {keyring} {source.uri} {source.suite} {' '.join(source.components)}\n" for source in sources]
    home = Path(environment.get("HOME", "/root"))
    copied = {
        "/etc/resolv.conf": [Path("/etc/resolv.conf")],
        "/etc/xdg/pip/pip.conf": [Path("/etc/pip.conf")],
        "/etc/pip.conf": [home / ".config/pip/pip.conf", home / ".pip/pip.conf"],
        **{path: [Path(path)] for path in {_BUNDLE, *(environment.get(name, _BUNDLE) for name in _CERTIFICATES)}},
    }
    return {
        "/etc/apt/apt.conf.d/99machine": apt,
        "/etc/apt/sources.list": "".join(lines),
        "/etc/hosts": Path("/etc/hosts").read_text() + "127.0.1.1 fresh\n",
        **{path: file.read_text() for path, files in copied.items() for file in files if file.is_file()},
    }


@contextmanager
def running(plan: Plan) -> Iterator[Iterator[dict[str, Any]]]:
    """The lines that scripts.fresh.inside prints for that plan. At the end no process, mount or loop device is left."""
    isolated = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--ipc", "--uts"]
    command = [*isolated, "--", sys.executable, "-m", "scripts.fresh.inside"]
    devices: set[str] = set()
    with tempfile.TemporaryFile("w+") as text:
        json.dump(asdict(plan), text)
        text.seek(0)
        process = subprocess.Popen(
            command, stdin=text, stdout=subprocess.PIPE, text=True,
            cwd=plan.repository, preexec_fn=_end_with_parent, start_new_session=True,
        )  # fmt: skip

    def lines() -> Iterator[dict[str, Any]]:
        assert process.stdout
        for line in process.stdout:
            values = json.loads(line)
            devices.update(values.get("devices", []))
            yield values
        if process.wait():
            raise RuntimeError(
                f"make fresh: the bare system did not start or was killed: exit status {process.returncode}"
            )

    try:
        yield lines()
    finally:
        process.kill()
        process.communicate()
        _detach(plan.image, devices)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _detach(image: str, devices: set[str]) -> None:
    """Detach the loop devices of a system that has ended, and wait until that of its disk goes with the last mount.

    devices: on which the system had files, beside its disk.
    """
    image_device = {numbers(os.stat(image).st_dev)}
    until = time.monotonic() + _GONE_SECONDS
    while True:
        disks = [(name, file) for name, file in loop_devices(image_device) if file == image]
        on_it = loop_devices(devices | {numbers(os.stat(name).st_rdev) for name, _ in disks})
        if not disks and not on_it:
            return
        for name, _ in on_it + disks:
            subprocess.run(["losetup", "--detach", name], capture_output=True, check=False)
        if time.monotonic() > until:
            names = ", ".join(f"{name} of {file}" for name, file in disks + on_it)
            raise RuntimeError(f"make fresh: loop devices are left: {names}; detach them: losetup --detach NAME")
        time.sleep(0.1)


def run(plan: Plan, tell_begin: Callable[[Step], None]) -> tuple[str, list[Result]]:
    """The Python of that system, and the results of the plan's steps. Blocking.

    tell_begin: called before each step that is told. Raises RuntimeError where the system does not start.
    """
    python, results = "", []
    with running(plan) as lines:
        for values in lines:
            python = values.get("python", python)
            if "step" in values:
                results.append(Result(**{**values, "step": Step(**values["step"])}))
            if python and len(results) < len(plan.steps) and (step := plan.steps[len(results)]).is_told:
                tell_begin(step)
    return python, results


@contextmanager
def fresh_copy(image: Path) -> Iterator[Path]:
    """A copy of that image, for one run; removed at the end. Removes those of runs that were killed."""
    for left in image.parent.glob("run-*.ext4"):
        with left.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _detach(str(left), set())
            left.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(prefix="run-", suffix=".ext4", dir=image.parent) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        base.run(["cp", "--sparse=always", str(image), file.name])
        yield Path(file.name)
