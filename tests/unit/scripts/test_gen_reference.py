"""The generated reference pages are current and leave nothing out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripts import gen_reference

from tonnage.base.observe.metrics import REGISTRY


@pytest.fixture
def pages() -> Mapping[str, str]:
    """As they are in the repository: another test shows that they are current."""
    return {name: (gen_reference.ROOT / "docs" / "reference" / name).read_text() for name in gen_reference.GENERATED}


@pytest.mark.slow
def test_pages_are_current() -> None:
    """In a process of its own: the generator shows the defaults of root."""
    command = [sys.executable, "scripts/gen_reference.py", "--check"]
    ended = subprocess.run(command, cwd=gen_reference.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_metric_has_a_row(pages: Mapping[str, str]) -> None:
    for family in REGISTRY.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in pages["metrics.md"]


def test_events_through_parameters_are_found(pages: Mapping[str, str]) -> None:
    """Reasons that pass through one and two functions, and through a callable that was handed on."""
    for row in (
        "| `ExternalProvisioning` | Normal | PersistentVolumeClaim |",
        "| `ClaimLost` | Warning |",
        "| `Started` |",
    ):
        assert row in pages["events.md"]


def test_the_states_are_those_of_the_code() -> None:
    page = gen_reference.ARCHITECTURE.read_text()
    assert gen_reference.states(page) == page
    assert "    waits --> creating: begin" in page
    assert "| bind done | `binding` | `bound` |" in page
    assert "    bare --> taking: make content" in page
    with pytest.raises(SystemExit, match="no states of a claim"):
        gen_reference.states("# Architecture\n")


def test_folders_are_rows_in_the_order_of_the_layers(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = ["tonnage.tools", "tonnage.storage.pools | tonnage.csi"]\n'
    )
    for name, text in {
        "tonnage/storage/pools": "Pools.",
        "tonnage/storage/pools/image": "Image\npool.",
        "tonnage/csi": "Driver.",
        "tonnage/tools": "Verbs.",
        "tonnage_box": "Box.",
    }.items():
        folder = tmp_path / "src" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'"""{text}"""\n')
    (tmp_path / "docs").mkdir()
    head = "| folder | what it does, who calls it, what it may touch |\n| --- | --- |\n"
    (tmp_path / "docs" / "architecture.md").write_text(f"# A\n\n{head}| `old` | Old. |\n\nrest\n")
    rows = "| `tonnage_box` | Box. |\n| `tools` | Verbs. |\n| `storage/pools` | Pools. |\n| `storage/pools/image` | Image pool. |\n| `csi` | Driver. |\n"
    assert gen_reference.folders(tmp_path) == f"# A\n\n{head}{rows}\nrest\n"


def test_a_stale_page_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "metrics.md"
    monkeypatch.setattr(gen_reference, "ROOT", tmp_path)
    monkeypatch.setattr(gen_reference, "pages", lambda: {page: "new\n"})
    page.write_text("old\n")
    monkeypatch.setattr(sys, "argv", ["gen_reference", "--check"])
    assert gen_reference.main() == 1
    assert page.read_text() == "old\n"
    assert "run make reference" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["gen_reference"])
    assert gen_reference.main() == 0
    assert page.read_text() == "new\n"
    monkeypatch.setattr(sys, "argv", ["gen_reference", "--check"])
    assert gen_reference.main() == 0
