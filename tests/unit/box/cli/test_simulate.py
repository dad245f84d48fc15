"""`tonnage simulate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.layers import needs_layer

from tonnage.tools.cli.main import main
from tonnage_box.cli.simulate import ProgressLines, best_of
from tonnage_box.simulate.tally import Result

EXAMPLE = str(Path(__file__).parents[4] / "examples/workloads/ci-burst.yaml")


def test_policies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", EXAMPLE, "--nodes", "2", "--pods", "60", "--policy", "most-free,untracked"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ci-burst.yaml: 2 nodes with 1800Gi, 24 h, seed 0"
    assert lines[1].split() == ["most-free", "untracked", "best"]
    came = next(line.split() for line in lines if "pods that arrived" in line)
    assert came[-3:] == ["60", "60", "-"]
    stuck = next(line for line in lines if "without a node" in line)
    assert stuck.endswith("all alike")


@pytest.mark.slow
@needs_layer("plots", "matplotlib")
def test_everything_real_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "runs.svg"
    assert main(["simulate", EXAMPLE, "--nodes", "2", "--pods", "30", "--full", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "API writes a pod (counted)" in out
    assert "ci-burst.yaml on 2 nodes" in picture.read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--policy", "best"], "there is no policy 'best'"),
        (["--pods", "0"], "--pods 0: at least 1"),
        (["--score-nodes", "101"], "--score-nodes 101: from 0 to 100"),
        (["--score-least", "0"], "--score-least 0: at least 1"),
        (["--plot", "runs.pdf"], "--plot runs.pdf: the name must end in .png or .svg"),
        (["--plot", "no-such-folder/runs.svg"], "there is no folder no-such-folder"),
        (["--nodes", "no-such-file.yaml"], "no-such-file.yaml cannot be read"),
    ],
)
def test_rejected_by_name(capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    assert main(["simulate", EXAMPLE, "--nodes", "2", *more]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_so_many_pods_come_as_were_asked_for(capsys: pytest.CaptureFixture[str], seed: str) -> None:
    assert main(["simulate", EXAMPLE, "--nodes", "3", "--pods", "300", "--seed", seed, "-o", "json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["pods"] == 300


def test_objects_come_whole_which_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "node: {pools: {scratch: 900Gi}}\n"
        "streams: [{name: s, kind: Job, rate: 10/h, burst: 7, lifetime: 1m, volumes: [{size: 1Gi}]}]\n"
    )
    assert main(["simulate", str(file), "--nodes", "2", "--pods", "30"]) == 0
    assert "30 pods were requested, 35 arrived: Jobs, Deployments" in capsys.readouterr().out


@pytest.mark.parametrize("before", ["", "---\n{apiVersion: v1, kind: Pod}\n---\n"])
def test_an_object_of_kubernetes_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(before + "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n")
    assert main(["simulate", str(file), "--nodes", "2"]) == 2
    error = capsys.readouterr().err
    assert "this is a Pod of Kubernetes, not a workload" in error
    assert "examples/workloads/ci-burst.yaml" in error


def test_the_best_of_each_row() -> None:
    def less(result: Result) -> float:
        return result.waiting

    one, two, three = (
        Result(name, 9, 9 - waiting, waiting, 1.0, 9, 0, 0, 9, 0.1, 0.1, 0.1, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
        for name, waiting in (("a", 1), ("b", 2), ("c", 1))
    )
    assert best_of([one, two], less) == ["a"]
    assert best_of([one, two, three], less) == ["a", "c"]


def test_a_long_run_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    told = ProgressLines("most-free", lambda: now)
    for second in range(25):
        now = float(second)
        told(second / 100)
    told(1.0)
    assert capsys.readouterr().err.splitlines() == [
        f"simulating most-free: {share} % of the time" for share in (2, 12, 22)
    ]
