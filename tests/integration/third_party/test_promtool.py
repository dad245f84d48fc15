"""The alert rules in the eyes of Prometheus itself: `promtool check rules`, and rules that fire on made-up series."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tonnage.tools.ops.install.manifests import render_part
from tonnage.tools.ops.install.options import Installation

pytestmark = [pytest.mark.real, pytest.mark.programs]
NODE = 'instance="n1",namespace="tonnage-system"'
SERIES = {
    "TonnagePoolDown": [(f'tonnage_pool_up{{pool="p",kind="image",{NODE}}}', "0x60")],
    "TonnagePoolAlmostFull": [
        (f'tonnage_pool_free_bytes{{pool="p",kind="image",{NODE}}}', "5x60"),
        (f'tonnage_pool_size_bytes{{pool="p",kind="image",{NODE}}}', "100x60"),
    ],
    "TonnageVolumesAbnormal": [(f'tonnage_pool_abnormal_volumes{{pool="p",kind="image",{NODE}}}', "2x60")],
    "TonnageOrphans": [(f'tonnage_orphan_volumes{{node="n1",pool="p",{NODE}}}', "1x100")],
    "TonnageApiServerWentBack": [(f'tonnage_api_server_went_back{{node="n1",{NODE}}}', "1x60")],
    "TonnageClaimsRescheduled": [(f'tonnage_claims_rescheduled_total{{node="n1",{NODE}}}', "0+60x60")],
    "TonnageProvisioningFails": [
        (f'controller_persistentvolumeclaim_provision_failed_total{{class="c",source="",{NODE}}}', "0+6x60")
    ],
    "TonnageCredentialsRefused": [(f"tonnage_credentials_refused{{{NODE}}}", "1x60")],
    "TonnageUnreadableObjects": [(f'tonnage_unreadable_objects{{resource="pods",{NODE}}}', "2x60")],
    "TonnageNoController": [],
}
"""Alert -> what makes it fire, a sample each minute."""


@pytest.fixture(scope="module")
def promtool(go_program: Callable[[str], Path]) -> Callable[..., str]:
    """Runs it; it must be content."""
    program = go_program("promtool")

    def run(*arguments: str | Path) -> str:
        ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The rules as Prometheus reads them."""
    path = tmp_path / "rules.yaml"
    found = yaml.safe_load(render_part("rules.yaml", Installation(monitoring=True)))
    path.write_text(yaml.safe_dump(found["spec"]))
    return path


def test_the_rules_are_right(promtool: Callable[..., str], rules: Path) -> None:
    assert f"SUCCESS: {len(SERIES)} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", rules)


def test_each_rule_fires(promtool: Callable[..., str], rules: Path) -> None:
    """With its text filled in, and none of them while all is well."""
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == list(SERIES)
    leads: list[tuple[str, str]] = [("tonnage_controller_leads", "1x100")]
    tests = [
        _test(series + ([] if name == "TonnageNoController" else leads), {name}, group["rules"])
        for name, series in SERIES.items()
    ]
    well = [
        (f'tonnage_pool_up{{pool="p",kind="image",{NODE}}}', "1x100"),
        (f'tonnage_pool_free_bytes{{pool="p",kind="lvm",{NODE}}}', "0x100"),
        (f'tonnage_pool_size_bytes{{pool="p",kind="lvm",{NODE}}}', "0x100"),
        (f'tonnage_orphan_volumes{{node="n1",pool="p",{NODE}}}', "0x100"),
        ('controller_persistentvolumeclaim_provision_failed_total{class="c",namespace="others"}', "0+60x100"),
    ]
    tests.append(_test([*leads, *well], set(), group["rules"]))
    file = rules.with_name("tests.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


def _test(series: list[tuple[str, str]], firing: set[str], rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}})',
                "eval_time": "90m" if rule["alert"] in ("TonnageOrphans",) else "50m",
                "exp_samples": [{"labels": "{}", "value": 1}] if rule["alert"] in firing else [],
            }
            for rule in rules
        ],
    }
