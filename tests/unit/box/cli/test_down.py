"""`tonnage down` where no cluster runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tonnage_box.data_dir import DataFolder, Settings

Run = Callable[..., Any]


def test_a_folder_without_a_cluster(tonnage: Run, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    shown = tonnage("down", "--data", missing)
    assert shown.code == 1
    assert "name its folder with --data" in shown.error
    purged = tonnage("down", "--purge", "--data", missing)
    assert (purged.code, purged.out.startswith("nothing to remove: ")) == (0, True)


def test_a_stopped_cluster_stays_until_it_is_purged(tonnage: Run, tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    data.open(Settings())
    data.keep(Settings(), "uid-1")
    data.close()
    for _ in range(2):
        shown = tonnage("down", "--data", data.path)
        assert shown.code == 0
        assert f"no cluster runs in {data.path}" in shown.out
    assert data.exists()
    assert tonnage("down", "--purge", "--data", data.path).code == 0
    assert not data.exists()


def test_it_starts_without_a_boxs_servers_and_drivers() -> None:
    """They take a second to import, and a box ends many times a day."""
    script = "import sys, tonnage_box.cli.down; print({'aiohttp', 'grpclib', 'cryptography'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
