"""Options that are declared once: flag, key of the file, environment variable, check."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pytest
import yaml

from tonnage.base import option
from tonnage.base.errors import InvalidError
from tonnage.base.option import Option
from tonnage.controller.config import ControllerConfig
from tonnage.node.config.agent import AgentConfig
from tonnage.node.config.driver import DRIVER_FILE, DriverConfig
from tonnage.node.config.node import NODE_FILE, NodeConfig
from tonnage.scheduler.app import SchedulerConfig
from tonnage.tools.ops.install.options import Installation


@dataclass(frozen=True)
class Sample:
    """An option of each type, and a field that is none."""

    place: Annotated[str, Option("where", "DIR", environ="SAMPLE_PLACE", parse=str.upper)]
    mode: Annotated[str, Option("how", choices=("one", "two"))] = "one"
    top_count: Annotated[int, Option("how many", "N", written=int, wanted="0 or more")] = 3
    words: Annotated[
        tuple[str, ...], Option("words", name="many_words", written=list[str], parse=tuple, adds=True)
    ] = ()
    paths: Annotated[tuple[str, ...], Option("paths", written=list[str], parse=tuple)] = ()
    switch: Annotated[bool, Option("whether", written=bool)] = False
    internal: int = 0


def _parsed(*arguments: str) -> option.Values:
    parser = argparse.ArgumentParser()
    option.add_arguments(parser, Sample)
    return option.given_by(parser.parse_args(arguments))


def test_a_declaration_is_a_flag_and_a_key() -> None:
    assert [found.flag for _, found in option.options_of(Sample).values()] == [
        "--place", "--mode", "--top-count", "--many-word", "--path", "--switch",
    ]  # fmt: skip
    keys = option.file_keys(option.file_type("SampleFile", [Sample], more=str))
    assert keys == ["manyWords", "mode", "more", "paths", "place", "switch", "topCount"]


def test_what_is_not_given_has_its_default() -> None:
    assert option.read(Sample, _parsed(), {}) == {}
    assert Sample("x", **option.read(Sample, {"place": "", "top_count": 0})) == Sample("x")


def test_the_first_source_wins_unless_values_add_up() -> None:
    given = _parsed("--place", "a", "--path", "p", "--many-word", "x", "--many-word", "y", "--switch")
    file = {"place": "b", "paths": ["q"], "many_words": ["z"], "top_count": 5}
    assert option.read(Sample, given, file) == {
        "place": "A", "top_count": 5, "words": ("x", "y", "z"), "paths": ("p",), "switch": True,
    }  # fmt: skip


def test_the_environment_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_PLACE", "env")
    assert option.read(Sample, {})["place"] == "ENV"
    assert option.read(Sample, {"place": "file"})["place"] == "FILE"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "three"}, "mode 'three': want one or two"),
        ({"top_count": -1}, "topCount -1: want 0 or more"),
    ],
)
def test_a_wrong_value_is_rejected_by_its_key(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        option.read(Sample, values)


def test_a_wrong_choice_is_rejected_by_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parsed("--mode", "three")
    assert "argument --mode: invalid choice: 'three'" in capsys.readouterr().err


def test_a_file_has_typed_and_known_keys() -> None:
    form = option.file_type("SampleFile", [Sample])
    assert option.convert(None, form) == {}
    assert option.convert({"topCount": 2, "manyWords": ["a"]}, form) == {"top_count": 2, "many_words": ["a"]}
    wrongs: list[object] = [{"topCount": "2"}, {"other": 1}, []]
    for wrong in wrongs:
        with pytest.raises(msgspec.ValidationError):
            option.convert(wrong, form)


@pytest.mark.parametrize("config", [DriverConfig, AgentConfig, NodeConfig, ControllerConfig, SchedulerConfig])
def test_each_option_of_a_program_has_help(config: type) -> None:
    assert option.options_of(config)
    assert all(found.help for _, found in option.options_of(config).values())


def test_the_file_of_an_installation_has_declared_keys_only() -> None:
    known = option.options_of(AgentConfig) | option.options_of(NodeConfig)
    assert set(Installation().file) <= known.keys()
    assert set(option.file_keys(DRIVER_FILE)) < set(option.file_keys(NODE_FILE))


def test_the_chart_has_the_declared_defaults(request: pytest.FixtureRequest) -> None:
    values = yaml.safe_load((request.config.rootpath / "deploy/helm/tonnage/values.yaml").read_text())
    assert {name: values[name] for name in Installation().file} == Installation().file
