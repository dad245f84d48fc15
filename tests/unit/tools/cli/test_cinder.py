"""`tonnage cinder` serves at its socket until a signal, and names what is missing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.tools.cli.main import main
from tonnage_box.testing.wait import eventually


def test_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CSI_ENDPOINT", raising=False)
    assert main(["cinder"]) == 2
    assert "--endpoint is missing" in capsys.readouterr().err
    assert main(["cinder", "--endpoint", f"{tmp_path}/csi.sock", "--time-limit", "-1"]) == 2
    assert "time limit -1: want 1 or more" in capsys.readouterr().err
    assert main(["cinder", "--endpoint", f"{tmp_path}/csi.sock", "--config", f"{tmp_path}/none"]) == 2
    assert "none: cannot be read: No such file or directory" in capsys.readouterr().err


def start(socket: Path, state: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tonnage", "cinder", "--endpoint", str(socket), "--state", str(state)]
    return subprocess.Popen(words)


@pytest.mark.slow
async def test_serves_until_a_signal(tmp_path: Path) -> None:
    socket = tmp_path / "csi.sock"
    process = start(socket, tmp_path)
    try:

        async def is_there() -> bool:
            return socket.exists()

        await eventually(is_there)
        async with CsiClient(socket) as client:
            assert (await client.plugin_info()).name == "cinder.tonnage.dev"
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not socket.exists()
