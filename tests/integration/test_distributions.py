"""The two distributions: what each has, each in an environment of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import distributions
from tests.clusters import Cluster

from tonnage import __version__
from tonnage.kubernetes.api import names
from tonnage.tools.cli.main import VERBS

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
NODE = "node-of-wheel"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of tonnage and tonnage-box."""
    return distributions.wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory, built: tuple[Path, Path]) -> Path:
    """The program `tonnage` of an environment that has tonnage alone."""
    return distributions.environment(tmp_path_factory.mktemp("core"), built[0]) / "tonnage"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, built: tuple[Path, Path]) -> Path:
    """The program `tonnage` of an environment that has both."""
    return distributions.environment(tmp_path_factory.mktemp("whole"), *built) / "tonnage"


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it outside of the repository, without its variables."""
    environ = distributions.clean_environ()
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd="/", env=environ)


def test_each_wheel_has_its_package_alone(built: tuple[Path, Path]) -> None:
    assert [list(distributions.tops(wheel)) for wheel in built] == [["tonnage"], ["tonnage_box"]]


def test_they_have_one_version() -> None:
    core = tomllib.loads((distributions.ROOT / "pyproject.toml").read_text())["project"]
    box = tomllib.loads((distributions.ROOT / "box/pyproject.toml").read_text())["project"]
    assert core["version"] == box["version"] == __version__
    assert box["dependencies"] == [f"tonnage=={__version__}"]
    assert core["optional-dependencies"]["box"] == [f"tonnage-box=={__version__}"]
    assert core["requires-python"] == box["requires-python"]


@pytest.mark.parametrize("verb", ON_KUBERNETES)
def test_verbs_of_kubernetes_are_there(core: Path, verb: str) -> None:
    ended = run(core, verb, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"usage: tonnage {verb}" in ended.stdout


@pytest.mark.parametrize("verb", IN_A_BOX)
def test_verbs_of_the_box_say_what_to_install(core: Path, verb: str) -> None:
    ended = run(core, verb)
    assert ended.returncode == 4
    assert ended.stderr == f"tonnage {verb}: it is in tonnage-box, which is not installed: pip install 'tonnage[box]'\n"


def test_without_a_box_its_data_folder_is_no_source(core: Path, tmp_path: Path) -> None:
    ended = run(core, "volumes", "list", "--data", str(tmp_path))
    assert ended.returncode == 1
    assert "tonnage-box is not installed here; name a driver with --endpoint" in ended.stderr
    ended = run(core, "doctor", "--data", str(tmp_path))
    assert "tonnage-box is not installed here; name a cluster with --kubeconfig" in ended.stderr


@pytest.mark.parametrize("verb", IN_A_BOX)
def test_with_both_verbs_of_the_box_are_there(whole: Path, verb: str) -> None:
    ended = run(whole, verb, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"usage: tonnage {verb}" in ended.stdout


def test_with_both_a_cluster_runs(whole: Path, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "d"))
    ended = run(whole, "up", "--pool", "fake", "--runtime", "none", "--port", "0", "--detach", *data)
    try:
        assert ended.returncode == 0, ended.stderr
        found = run(whole, "doctor", *data)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "1 nodes are Ready" in found.stdout
    finally:
        ended = run(whole, "down", "--purge", *data)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def start(core: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts verbs of tonnage alone; they end with the test, in order."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(verb: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{verb}.log").open("wb") as log:
            started.append(subprocess.Popen([core, verb, *arguments], stderr=log, stdout=log))
        return started[-1]

    yield begin
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
