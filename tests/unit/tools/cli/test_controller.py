"""The command line of `tonnage controller`."""

from __future__ import annotations

import pytest

from tonnage.base.option import options_of
from tonnage.controller.config import ControllerConfig
from tonnage.tools.cli.main import build_parser, main


def test_every_option_of_the_configuration_has_a_flag() -> None:
    parsed = build_parser("controller").parse_args(["controller", "--capacity", "tiers", "--evict-unfit"])
    assert (parsed.capacity, parsed.evict_unfit) == ("tiers", True)
    assert vars(parsed).keys() >= options_of(ControllerConfig).keys() | {"kubeconfig", "log_format", "log_level"}


def test_a_wrong_value_ends_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", "--metrics", "a"]) == 2
    assert "tonnage controller: metrics address 'a': want [ADDRESS:]PORT" in capsys.readouterr().err
