"""`tonnage node`, `controller` and `scheduler` from the tree of the container image: without box, simulator and testing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deploy.image.contents import LEFT_OUT
from tests.conftest import Cluster

import tonnage
from tonnage.api import names
from tonnage.cli.main import VERBS

pytestmark = pytest.mark.real
ON_KUBERNETES = (
    "node",
    "controller",
    "scheduler",
    "driver",
    "manifests",
    "doctor",
    "why",
    "pools",
    "volumes",
    "flexvolume",
    "cinder",
)
IN_A_BOX = sorted(set(VERBS) - set(ON_KUBERNETES))
NODE = "node-of-tree"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, without what the image leaves out."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copytree(Path(tonnage.__file__).parent, copy / "tonnage", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in LEFT_OUT:
        shutil.rmtree(copy / "tonnage" / folder)
    return copy


def command(tree: Path, *arguments: str) -> list[str]:
    """The command line of that tree and of no other. -P, -S: neither this folder nor an installed package."""
    paths = [str(tree), *(path for path in sys.path if path.endswith("site-packages"))]
    start = f"import sys; sys.path[:0] = {paths!r}; from tonnage.cli.main import main; sys.exit(main())"
    return [sys.executable, "-P", "-S", "-c", start, *arguments]


@pytest.mark.parametrize("verb", ON_KUBERNETES)
def test_verbs_of_kubernetes_are_there(tree: Path, verb: str) -> None:
    ended = subprocess.run(command(tree, verb, "--help"), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"usage: tonnage {verb}" in ended.stdout


@pytest.mark.parametrize("verb", IN_A_BOX)
def test_verbs_of_the_box_say_that_they_are_not_there(tree: Path, verb: str) -> None:
    ended = subprocess.run(command(tree, verb), capture_output=True, text=True, check=False)
    assert ended.returncode == 4
    assert ended.stderr == (
        f"tonnage: {verb}: not part of the container image; install tonnage on this machine (pip install tonnage)\n"
    )


def test_the_tree_has_no_box(tree: Path) -> None:
    start = command(tree)
    start[4] = start[4].replace("from tonnage.cli.main import main; sys.exit(main())", "import tonnage.box")
    ended = subprocess.run(start, capture_output=True, text=True, check=False)
    assert "No module named 'tonnage.box'" in ended.stderr


@pytest.fixture
def start(tree: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts verbs of that tree; they end with the test, in order."""
    started: list[subprocess.Popen[bytes]] = []

    def run(verb: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{verb}.log").open("wb") as log:
            started.append(subprocess.Popen(command(tree, verb, *arguments), stderr=log, stdout=log))
        return started[-1]

    yield run
    for process in started:
        process.send_signal(signal.SIGTERM)
    codes = [process.wait(timeout=60) for process in started]
    assert codes == [0] * len(codes), [log.read_text()[-2000:] for log in tmp_path.glob("*.log")]


def test_node_controller_and_scheduler_do_their_work(
    make_cluster: Callable[..., Cluster], start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    box = make_cluster("--nodes", "1", "--pool", "fake,name=scratch,size=10Gi", "--runtime", "none")
    box.up()
    box.kubectl("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Node\nmetadata:\n  name: {NODE}\n")
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(box.data / "kubeconfig", kubeconfig)
    access = ("--kubeconfig", str(kubeconfig), "--namespace", names.SYSTEM_NAMESPACE)
    with tempfile.TemporaryDirectory(prefix="tn") as folder:  # short: a socket's path has at most 107 bytes
        (Path(folder) / "plugins_registry").mkdir()
        start("node", "--node-name", NODE, "--kubelet", folder, "--pool", "fake,name=scratch,size=7Gi", *access)
        start("controller", *access)
        start("scheduler", *access)
        box.until("the agent publishes its capacity", lambda: box.capacities().get(NODE) == "7Gi")
        box.until("the controller leads", lambda: _holds(box, "tonnage-controller"))
        box.until("the scheduler leads", lambda: _holds(box, "tonnage-scheduler"))


def _holds(box: Cluster, lease: str) -> bool:
    found = box.get("-n", names.SYSTEM_NAMESPACE, "leases")["items"]
    return any(item["metadata"]["name"] == lease and item["spec"].get("holderIdentity") for item in found)
