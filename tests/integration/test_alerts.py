"""Alerts and dashboard: they ask for metrics and labels that exist, and each alert leads to a heading in the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.base.observe.test_metrics import exported

from tonnage.tools.ops.install.manifests import RUNBOOKS, render_part, template
from tonnage.tools.ops.install.options import Installation

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "alerts.md"
SCRAPED = {"instance", "namespace", "le"}
"""Labels that Prometheus and histograms add."""


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(render_part("rules.yaml", Installation(monitoring=True)))["spec"]["groups"]
    assert isinstance(group["rules"], list)
    return group["rules"]


RULES = {rule["alert"]: rule for rule in _rules()}
SHOWN = [
    target["expr"]
    for panel in json.loads(template("dashboard.json"))["panels"]
    for target in panel["targets"]
]  # fmt: skip


def _asked(expression: str) -> dict[str, tuple[str, ...]]:
    """Metric -> its labels, of an expression; KeyError for one that is not exported."""
    names = re.findall(
        r"\b[a-z]+_\w+", re.sub(r'"[^"]*"|(by|without) *\([^)]*\)', "", re.sub(r"\{[^}]*\}", "", expression))
    )
    words = {"histogram_quantile", "label_replace", "avg_over_time", "max_over_time"}
    return {name: exported()[re.sub("_(bucket|sum|count)$", "", name)][1] for name in names if name not in words}


def _labels(expression: str) -> set[str]:
    """Labels that an expression names."""
    matched = re.findall(r"(\w+) *(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [word for found in re.findall(r"(?:by|without) *\(([^)]*)\)", expression) for word in found.split(",")]
    return {word.strip() for word in (*matched, *grouped)}


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in RULES.values()), *SHOWN])
def test_what_is_asked_exists(expression: str) -> None:
    metrics = _asked(expression)
    assert metrics
    known = SCRAPED.union(*metrics.values())
    assert _labels(expression) <= known, expression


@pytest.mark.parametrize("alert", RULES)
def test_texts_name_labels_that_the_alert_has(alert: str) -> None:
    rule = RULES[alert]
    known = SCRAPED.union(*_asked(rule["expr"]).values())
    for grouped in re.findall(r"by *\(([^)]*)\)", rule["expr"]):
        known &= {word.strip() for word in grouped.split(",")}
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert used <= known


@pytest.mark.parametrize("alert", RULES)
def test_each_alert_leads_to_what_to_do(alert: str) -> None:
    notes = RULES[alert]["annotations"]
    assert notes["runbook_url"] == f"{RUNBOOKS}#{alert.lower()}"
    assert RUNBOOKS.endswith("/docs/tasks/alerts")
    assert re.search(rf"^## {alert}\n\n\S", PAGE.read_text(), re.M)
    assert notes["summary"]
    assert RULES[alert]["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[mh]", RULES[alert]["for"])


def test_every_alert_that_is_told_of_exists() -> None:
    assert re.findall(r"^## (Tonnage\w+)$", PAGE.read_text(), re.M) == list(RULES)
