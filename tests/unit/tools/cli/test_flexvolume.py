"""`tonnage flexvolume`: the program is installed and removed, and a second run changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.tools.cli.main import main


def test_install_and_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--dir", str(tmp_path), "--driver", "tonnage.dev/local"]
    program = tmp_path / "tonnage.dev~local" / "local"
    assert main(["flexvolume", "install", *given]) == 0
    assert capsys.readouterr().out == f"installed {program}\n"
    assert "/run/tonnage/flex" in program.read_text()
    assert main(["flexvolume", "install", *given]) == 0
    assert capsys.readouterr().out == ""
    assert main(["flexvolume", "remove", *given]) == 0
    assert capsys.readouterr().out == f"removed {program}\n"
    assert list(tmp_path.iterdir()) == []
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert main(["flexvolume", "install", *given]) == 3
    assert "another FlexVolume driver is installed there; remove it first" in capsys.readouterr().err
