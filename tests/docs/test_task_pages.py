"""Pages of docs/tasks as a user types them in a box: every block runs, in order, and prints what the page shows.

A block that begins with a comment is for the cluster which that names; ELSEWHERE lists these, so none is left out unseen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.clusters import Cluster
from tests.docs.pages import Block, Command, blocks
from tests.docs.walking import ROOT, make_shell, walk

TASKS = ROOT / "docs" / "tasks"
POOL = "image,name=scratch,size=3Gi,sparse=yes"
ELSEWHERE: dict[str, list[tuple[str, str]]] = {
    "attach-volumes": [
        ("On Kubernetes", "on a Kubernetes cluster"),
        ("What you see", "on a cluster whose node-2 is off"),
    ],
    "flexvolume": [("Install it", "on a Kubernetes cluster")],
    "limit-empty-dir": [],
    "reclaim-finished": [],
    "undelete": [("On Kubernetes", "on a Kubernetes cluster, on the node that has the volume")],
}
"""Page -> heading and place of each block that is not for a box."""
FRAGMENTS = {"flexvolume": ROOT / "examples" / "flexvolume" / "pod.yaml"}
"""Page -> the file whose Pod has the volumes that the page shows of it."""


def steps(page: str, folder: Path = TASKS) -> Iterator[Command]:
    """What is typed in the box. Fails for a block that nobody would know how to run."""
    for block in blocks(folder / f"{page}.md"):
        if block.language == "yaml":
            yield from _applied(page, block)
        else:
            assert block.language == "console", f"{block.heading}: a block {block.language!r} is not run"
            found = list(block.commands())
            assert found, f"{block.heading}: a block without a command"
            yield from () if block.place else found


def _applied(page: str, block: Block) -> Iterator[Command]:
    documents = list(yaml.safe_load_all(block.text))
    if all("apiVersion" in one for one in documents):
        yield Command(f"kubectl apply -f - <<'END'\n{block.text}END", "")
    else:
        (shown,) = documents
        assert shown.items() <= yaml.safe_load(FRAGMENTS[page].read_text())["spec"].items()


@pytest.mark.parametrize("page", ELSEWHERE)
def test_blocks_that_are_not_for_a_box_are_known(page: str) -> None:
    found = [(block.heading, block.place) for block in blocks(TASKS / f"{page}.md") if block.place]
    assert found == ELSEWHERE[page]
    assert list(steps(page))


@pytest.mark.parametrize("text", ["```sh\nls\n```\n", "```console\nls\n```\n", "- a\n\n  ```\n  $ ls\n  ```\n"])
def test_a_block_of_another_form_fails(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n{text}")
    with pytest.raises(AssertionError, match=r"^Page: a block"):
        list(steps("page", tmp_path))


@pytest.fixture
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Not yet up: the page starts it."""
    cluster = make_cluster()
    yield cluster
    cluster.down("--purge")


@pytest.fixture
def network_storage(box: Cluster) -> Iterator[None]:
    """The driver of the page about attached volumes, on two nodes."""
    state = box.home / "storage"
    state.mkdir()
    sockets = {"node-1": box.home / "a.sock", "node-2": box.home / "b.sock"}
    command = [sys.executable, "-m", "tonnage_box.testing.network_driver", str(state)]
    process = subprocess.Popen([*command, *(f"{node}={socket}" for node, socket in sockets.items())])
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.real
@pytest.mark.usefixtures("network_storage")
def test_attach_volumes(box: Cluster) -> None:
    assert walk(make_shell(box, POOL), steps("attach-volumes"), exactly=True)


@pytest.mark.real
@pytest.mark.parametrize("page", [page for page in ELSEWHERE if page != "attach-volumes"])
def test_page(box: Cluster, page: str) -> None:
    assert walk(make_shell(box, POOL), steps(page), exactly=True)
