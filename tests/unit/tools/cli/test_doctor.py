"""`tonnage doctor`: what it prints, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.tools.cli import doctor
from tonnage.tools.cli.main import main
from tonnage.tools.ops.doctor.finding import fail, ok, warn
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

FINDINGS = [
    ok("api", "versions", "served"),
    fail("csidriver", "csi.tonnage.dev", "there is no such CSIDriver", "apply it"),
    warn("volumes", "v", "kept", "look"),
]


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show("table", FINDINGS)
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].split() == ["CHECK", "WHAT", "FOUND"]
    assert lines[1].split() == ["ok", "api", "versions", "served"]
    assert "  FAIL csi.tonnage.dev: apply it" in lines
    assert "  warn v: look" in lines
    assert lines[-1] == "1 fault, 1 warning: the first fault is most often the cause"


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show("table", FINDINGS[:1])

    assert capsys.readouterr().out.splitlines()[-1] == "0 faults, 0 warnings: no problems found"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show(form, FINDINGS)
    out = capsys.readouterr().out
    found = json.loads(out) if form == "json" else yaml.safe_load(out)

    assert (found["faults"], found["warnings"]) == (1, 1)
    assert found["findings"][1] == {
        "check": "csidriver",
        "about": "csi.tonnage.dev",
        "level": "FAIL",
        "text": "there is no such CSIDriver",
        "todo": "apply it",
    }


async def test_a_box_whose_folder_is_not_known() -> None:
    """Its objects are looked at; of its machine it is said that it was not."""
    server = ApiServer(Store(extractor()))
    await server.start()
    try:
        found = await doctor.look(Client(server.transport("system:admin")), names.SYSTEM_NAMESPACE, None)
    finally:
        await server.stop()
    assert {finding.check for finding in found} >= {"box", "classes", "claims", "volumes"}
    (box,) = [finding for finding in found if finding.check == "box"]
    assert box.todo == "name it with --data, on the machine where the box runs"


def test_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
