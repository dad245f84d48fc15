"""The command blocks of README, docs/tasks/pmem-csi.md and docs/install.md run, in order, and print what the page shows.

README and walk-throughs: in a box below a folder of its own. docs/install.md and tasks for clusters: what prints manifests;
tests/e2e runs docs/install.md on a cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml
from tests.clusters import Cluster
from tests.docs.pages import Command, commands
from tests.docs.walking import ROOT, Shell, make_shell, walk
from tests.programs import found

from tonnage.host.filesystem import may_grow_ext4
from tonnage.tools.cli.main import main


def test_what_a_page_shows_is_compared() -> None:
    command = Command("kubectl get pods", "NAME  AGE\nmy-app  7s\npod/huge created")
    assert command.is_shown_by("pod/huge created\nNAME  STATUS  AGE\nmy-app  Running  12m")
    assert not command.is_shown_by("NAME  AGE\nmy-app  7s\npod/other created")
    assert not command.is_shown_by("NAME  AGE\npod/huge created")
    assert Command("a", "first\n...\nlast").is_shown_by("first\nsecond\nlast")
    assert not Command("a", "first\n...\nlast").is_shown_by("first\nsecond")


@pytest.mark.parametrize(
    ("shown", "good", "bad"),
    [
        ("a 1Gi Bound 7s", "a  1Gi   Bound 1m12s", "a 2Gi Bound 7s"),
        ("a Bound", "a Bound", "a Pending"),
        ("a Bound", "a Bound", "a Bound\nb Bound"),
        ("pvc-7d0fa1c2-0ae5-4c02-93ed-ed660be57891 ok", "pvc-1ba5f5e7-d86c-4412-8985-757e191bfc90 ok", "pvc-7d0f ok"),
        ("sort-4w52r-work met", "sort-mbr85-work met", "sort-mbr85-data met"),
        ("/dev/loop0 1.1G 1%", "/dev/loop12 1.1G 1%", "/dev/loop0 2.1G 1%"),
        ("first\n...\nlast", "first\nsecond\nlast", "first\nsecond"),
        ("2026-11-28T16:16:09Z node-1", "2027-01-02T03:04:05Z node-1", "2027-01-02T03:04:05Z node-2"),
    ],
)
def test_what_a_page_shows_is_compared_exactly(shown: str, good: str, bad: str) -> None:
    command = Command("kubectl get pvc", shown)
    assert command.is_printed_as(good)
    assert not command.is_printed_as(bad)


def test_what_a_page_types_at_a_prompt() -> None:
    assert Command("kubectl exec -it p -- sh", "# df\nSize\n# exit").typed == ["df", "exit"]
    assert Command("kubectl exec p -- head -1 README.md", "# tonnage").typed == []


@pytest.fixture
def shell(make_cluster: Callable[..., Cluster]) -> Shell:
    """A user's, with pools that promise more than the disk may have."""
    return make_shell(make_cluster(), "image,name=scratch,sparse=yes,overcommit=yes")


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
    (tmp_path / "helm").symlink_to(found("helm"))
    steps = [c for c in commands(ROOT / "README.md") if c.text.startswith("helm ")]
    assert steps
    folder = shlex.quote(str(tmp_path))
    walk_readme(lambda text, typed: shell(f"PATH={folder}:$PATH\n{text}", typed), commands(ROOT / "README.md"))


@pytest.mark.real
def test_the_walk_through_of_pmem_csi(shell: Shell) -> None:
    printed = walk(shell, commands(ROOT / "docs" / "tasks" / "pmem-csi.md"))
    assert "/dev/loop" in printed["kubectl exec my-csi-app -- df -h /data"]


MANIFESTS = [
    command.text
    for page in ("install.md", "tasks/attach-volumes.md", "tasks/flexvolume.md")
    for command in commands(ROOT / "docs" / page)
    if command.text.startswith("tonnage manifests")
]


@pytest.mark.slow
@pytest.mark.parametrize("command", MANIFESTS)
def test_manifests_of_pages_for_a_cluster(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, pipe, after = command.partition(" | ")
    assert (pipe, after) == (" | ", "kubectl apply -f -")
    assert main([w for w in shlex.split(before)[1:] if w != "..."]) == 0
    kinds = {document["kind"] for document in yaml.safe_load_all(capsys.readouterr().out) if document}
    assert {"DaemonSet", "CSIDriver", "StorageClass"} <= kinds
