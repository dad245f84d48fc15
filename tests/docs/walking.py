"""Walks through a page as one user in one box: command after command, each compared with what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.clusters import Cluster
from tests.docs.pages import FAILS, READS, UUID, Command
from tests.docs.terminal import converse

ROOT = Path(__file__).parents[2]
LIMIT = 300.0
NOT_HERE = re.compile(r"make |git |export KUBECONFIG=~/\.cache")
"""Commands that set up the machine: a test of theirs is what `make` itself runs."""
Shell = Callable[[str, list[str]], tuple[int, str]]


def make_shell(cluster: Cluster, pool: str) -> Shell:
    """Runs a command line as a user would, with the box's data folder below one of the test's.

    pool: of each node. Sockets in /run are below the test's folder, too.
    """
    programs = cluster.home / "bin"
    programs.mkdir()
    data, python = shlex.quote(str(cluster.data)), shlex.quote(sys.executable)
    scripts = {
        "sudo": 'exec "$@"',
        "tonnage": f'verb=$1; shift; [ "$verb" != up ] || set -- --port 0 --pool {pool} "$@"\n'
        f'[ "$verb" != volumes ] || {{ verb="volumes $1"; shift; }}\n'
        f'exec {python} -m tonnage $verb --data {data} "$@"',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(cluster.home)}

    def run(text: str, typed: list[str]) -> tuple[int, str]:
        text = text.replace("/var/lib/tonnage", str(cluster.data)).replace("=/run/", f"={cluster.home}/")
        command = ["bash", "-c", text]
        if typed:
            return converse(command, typed, folder=ROOT, environment=environment, seconds=LIMIT)
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        return ended.returncode, (ended.stdout + ended.stderr).replace(f" --data {cluster.data}", "")

    return run


def walk(
    shell: Shell, steps: Iterable[Command], *, first: Mapping[str, str] | None = None, exactly: bool = False
) -> dict[str, str]:
    """One user, one box: what a command reads is read again until it is as shown, since a pod takes its time.

    first: command -> what this machine needs before it. exactly: compare all of the output, and give later commands the
    UIDs that were printed in place of those on the page. Returns what each command printed.
    """
    exports, printed, uids = "", {}, dict[str, str]()
    for command in steps:
        if NOT_HERE.match(command.text):
            continue
        text = command.text.replace(".venv/bin/", "")
        for on_page, here in uids.items():
            text = text.replace(on_page, here)
        if text.startswith("export "):
            exports += f"{text}\n"
            continue
        if first and text in first:
            code, output = shell(exports + first[text], [])
            assert code == 0, f"$ {first[text]}\n{output}"
        is_as_shown = command.is_printed_as if exactly else command.is_shown_by
        wanted = int(exactly and FAILS in command.shown.splitlines())
        deadline = time.monotonic() + LIMIT
        while True:
            code, output = shell(exports + text, command.typed)
            if (code == wanted and is_as_shown(output)) or not READS.match(text) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert code == wanted, f"$ {text}\n{output}"
        assert is_as_shown(output), f"$ {text}\n{output}\nthe page shows:\n{command.shown}"
        uids |= zip(UUID.findall(command.shown), UUID.findall(output), strict=False)
        printed[text] = output
    assert len(printed) >= 3
    return printed
