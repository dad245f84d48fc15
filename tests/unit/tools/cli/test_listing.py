"""Lists as a table, JSON and YAML."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from tonnage.tools.cli import listing

DOCUMENT = {"pools": [{"name": "a", "size": 1}]}


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_a_document_is_whole(form: str, load: object, capsys: pytest.CaptureFixture[str]) -> None:
    listing.show(form, ("NAME",), [("a",)], DOCUMENT)
    assert callable(load)
    assert load(capsys.readouterr().out) == DOCUMENT


def test_a_table_has_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    listing.show("table", ("NAME",), [("a",)], DOCUMENT)
    assert capsys.readouterr().out.split() == ["NAME", "a"]


def test_sizes() -> None:
    assert (listing.size(None), listing.size(0), listing.size(3 << 30)) == ("-", "0", "3Gi")


def test_an_option_before_the_action_holds_after_it() -> None:
    parser = argparse.ArgumentParser()
    listing.add_arguments(parser)
    again = parser.add_subparsers(dest="action").add_parser("list")
    listing.add_arguments_again(again)
    found = listing.wanted(parser.parse_args(["--endpoint", "/a", "list", "--config", "f.yaml"]))
    assert (found.endpoint, found.config, found.data, found.kubeconfig) == ("/a", Path("f.yaml"), None, None)
