"""The command line: what it takes, what it rejects, and its exit codes."""

from __future__ import annotations

import gc
import importlib
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tonnage.base.errors import BusyError, HostError, InvalidError, PreconditionError, TonnageError, UnavailableError
from tonnage.storage.pools.kinds import MODULES
from tonnage.tools.cli.main import VERBS, exit_code, main
from tonnage.tools.cli.output import Output
from tonnage_box.data_dir import DataFolder, Settings


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (InvalidError("x"), 2),
        (BusyError("x"), 3),
        (PreconditionError("x"), 3),
        (HostError("x"), 4),
        (UnavailableError("x"), 1),
        (TonnageError("x"), 1),
    ],
)
def test_exit_codes(failure: TonnageError, code: int) -> None:
    assert exit_code(failure) == code


def test_nothing_is_collected_while_a_verb_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, load = [], importlib.import_module

    def import_module(name: str) -> ModuleType:
        seen.append(gc.isenabled())
        return load(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(SystemExit):
        main(["volumes", "--help"])
    assert seen == [False]
    assert gc.isenabled()


def test_help_of_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        assert "usage: tonnage " + verb in capsys.readouterr().out


def test_no_or_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["fly"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "fly" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "0"], "--nodes 0: want 1 to 1000"),
        (["--port", "70000"], "--port 70000: want 0 to 65535"),
        (["--pool", "floppy"], "unknown kind 'floppy'"),
        (["--pool", "fake,speed=11"], "fake has no option 'speed'"),
        (["--pool", "fake", "--pool-size", "lots"], "'lots' is not a quantity"),
        (["--pool", "fake", "--pool-size", "0"], "write a number with its unit, as 10Gi"),
        (["--pool", "fake", "--pool", "fake"], "two pools are named alike"),
    ],
)
def test_up_rejects_before_touching_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code = main(["up", "--runtime", "none", "--data", str(tmp_path / "d"), *arguments])

    assert code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_down_promises_no_volumes_of_fake_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataFolder(tmp_path / "d")
    data.open(Settings(pools=["memory,size=1Gi"], runtime="none"))
    data.close()
    assert main(["down", "--data", str(data.path)]) == 0
    assert f"{data.path}: objects stay, but volumes of fake pools are gone; `tonnage up`" in capsys.readouterr().out


def test_up_names_every_kind_of_pool(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{', '.join(MODULES)}; repeatable" in shown
    assert len(MODULES) == 7


def test_down_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--data", str(tmp_path / "d")]) == 1
    assert "there is no cluster" in capsys.readouterr().err
    assert main(["down", "--purge", "--data", str(tmp_path / "d")]) == 0  # a purge may be repeated


@pytest.mark.slow
def test_the_story_holds_without_root() -> None:
    command = [sys.executable, "-m", "tonnage", "demo", "--pool", "fake", "--runtime", "none"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "FAILED" not in ended.stdout
    assert ended.stdout.count("[ok]") == 16
    assert "All checks passed" in ended.stdout


def test_plain_and_fancy_output_say_the_same() -> None:
    def say(out: Output) -> None:
        out.title("Title [not markup]")
        out.check("it holds", held=True, detail="by far")
        out.check("it does not", held=False)
        out.waits("jobs is not synced")
        out.table(["A", "B"], [["1", "22"], ["333", "4"]])

    plain, fancy = io.StringIO(), io.StringIO()
    say(Output(plain, fancy=False))
    say(Output(fancy, fancy=True))

    assert "[ok] it holds: by far" in plain.getvalue()
    assert "[FAILED] it does not" in plain.getvalue()
    for word in ("Title [not markup]", "it holds", "by far", "waiting for: jobs is not synced", "333", "22"):
        assert word in plain.getvalue()
        assert word in fancy.getvalue()
