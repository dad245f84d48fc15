"""The command blocks of README, docs/tasks/pmem-csi.md and docs/install.md run, in order, and print what the page shows.

README and walk-throughs: in a box below a folder of its own. docs/install.md: what prints manifests; tests/e2e runs that page on a cluster.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.pages import READS, Command, commands
from tests.docs.terminal import converse
from tests.integration.third_party.programs import need

from tonnage.cli.main import main
from tonnage.host.filesystem import may_grow_ext4

ROOT = Path(__file__).parents[2]
LIMIT = 300.0
NOT_HERE = re.compile(r"make |git |export KUBECONFIG=~/\.cache")
"""Commands that set up the machine: a test of theirs is what `make` itself runs."""


def test_what_a_page_shows_is_compared() -> None:
    command = Command("kubectl get pods", "NAME  AGE\nmy-app  7s\npod/huge created")
    assert command.is_shown_by("pod/huge created\nNAME  STATUS  AGE\nmy-app  Running  12m")
    assert not command.is_shown_by("NAME  AGE\nmy-app  7s\npod/other created")
    assert not command.is_shown_by("NAME  AGE\npod/huge created")
    assert Command("a", "first\n...\nlast").is_shown_by("first\nsecond\nlast")
    assert not Command("a", "first\n...\nlast").is_shown_by("first\nsecond")


def test_what_a_page_types_at_a_prompt() -> None:
    assert Command("kubectl exec -it p -- sh", "# df\nSize\n# exit").typed == ["df", "exit"]
    assert Command("kubectl exec p -- head -1 README.md", "# tonnage").typed == []


Shell = Callable[[str, list[str]], tuple[int, str]]


@pytest.fixture
def shell(make_cluster: Callable[..., Any]) -> Shell:
    """Runs a command line as a user would, with the box's data folder below one of the test's."""
    cluster = make_cluster()
    programs = cluster.home / "bin"
    programs.mkdir()
    data, python = shlex.quote(str(cluster.data)), shlex.quote(sys.executable)
    pool = "--pool image,name=scratch,sparse=yes,overcommit=yes"  # the disk may have less than three nodes promise
    scripts = {
        "sudo": 'exec "$@"',
        "tonnage": f'verb=$1; shift; [ "$verb" != up ] || set -- --port 0 {pool} "$@"\n'
        f'exec {python} -m tonnage.cli "$verb" --data {data} "$@"',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(cluster.home)}

    def run(text: str, typed: list[str]) -> tuple[int, str]:
        command = ["bash", "-c", text.replace("/var/lib/tonnage", str(cluster.data))]
        if typed:
            return converse(command, typed, folder=ROOT, environment=environment, seconds=LIMIT)
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        return ended.returncode, (ended.stdout + ended.stderr).replace(f" --data {cluster.data}", "")

    return run


START_ANEW = """
status() { kubectl get pvc notes -o jsonpath="{.status.$1}"; }
until [ "$(status capacity.storage)" = 2Gi ]; do
    if status conditions[*].type | grep -q FileSystemResizePending; then
        kubectl get pod writer -o json | kubectl replace --force -f - || exit 1
    fi
    sleep 1
done
"""
"""Until the volume has grown: its pod starts again whenever the claim says that it waits for that."""


def walk(shell: Shell, steps: Iterable[Command], *, first: Mapping[str, str] | None = None) -> dict[str, str]:
    """One user, one box: what a command reads is read again until it is as shown, since a pod takes its time.

    first: command -> what this machine needs before it. Returns what each command printed.
    """
    exports, printed = "", {}
    for command in steps:
        if NOT_HERE.match(command.text):
            continue
        text = command.text.replace(".venv/bin/", "")
        if text.startswith("export "):
            exports += f"{text}\n"
            continue
        if first and text in first:
            code, output = shell(exports + first[text], [])
            assert code == 0, f"$ {first[text]}\n{output}"
        deadline = time.monotonic() + LIMIT
        while True:
            code, output = shell(exports + text, command.typed)
            if (code == 0 and command.is_shown_by(output)) or not READS.match(text) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert code == 0, f"$ {text}\n{output}"
        assert command.is_shown_by(output), f"$ {text}\n{output}\nthe page shows:\n{command.shown}"
        printed[text] = output
    assert len(printed) >= 3
    return printed


def walk_readme(shell: Shell, steps: Iterable[Command]) -> None:
    """Walk through it. A mounted ext4 that this process may not grow grows when its pod has started again."""
    grown = "kubectl wait --for=jsonpath={.status.capacity.storage}=2Gi pvc/notes"
    steps = list(steps)
    assert grown in {step.text for step in steps}
    walk(shell, steps, first=None if may_grow_ext4() else {grown: START_ANEW})


@pytest.mark.real
def test_readme(shell: Shell) -> None:
    """All but the chart: helm is a program that is built."""
    walk_readme(shell, commands(ROOT / "README.md", but="helm"))


@pytest.mark.real
@pytest.mark.programs
def test_readme_with_helm(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "helm").symlink_to(need("helm"))
    steps = [c for c in commands(ROOT / "README.md") if c.text.startswith("helm ")]
    assert steps
    folder = shlex.quote(str(tmp_path))
    walk_readme(lambda text, typed: shell(f"PATH={folder}:$PATH\n{text}", typed), commands(ROOT / "README.md"))


@pytest.mark.real
def test_the_walk_through_of_pmem_csi(shell: Shell) -> None:
    printed = walk(shell, commands(ROOT / "docs" / "tasks" / "pmem-csi.md"))
    assert "/dev/loop" in printed["kubectl exec my-csi-app -- df -h /data"]


MANIFESTS = [c.text for c in commands(ROOT / "docs" / "install.md") if c.text.startswith("tonnage manifests")]


@pytest.mark.parametrize("command", MANIFESTS)
def test_manifests_of_the_installation_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, pipe, after = command.partition(" | ")
    assert (pipe, after) == (" | ", "kubectl apply -f -")
    assert main([w for w in shlex.split(before)[1:] if w != "..."]) == 0
    kinds = {document["kind"] for document in yaml.safe_load_all(capsys.readouterr().out) if document}
    assert {"DaemonSet", "CSIDriver", "StorageClass"} <= kinds
