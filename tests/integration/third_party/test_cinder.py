"""csi-sanity, the Go conformance suite, against `tonnage cinder` over a child that has loop devices for storage."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cinder.child import CHILD

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
GI = 1 << 30


def test_conforms(real_folder: Path, go_program: Callable[[str], Path]) -> None:
    program = go_program("sanity")
    storage, socket, interpreter = real_folder / "storage", real_folder / "csi.sock", real_folder / "python"
    storage.mkdir()
    interpreter.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-I', str(CHILD), str(storage)])}\n")
    interpreter.chmod(0o755)
    (real_folder / "cinder.yaml").write_text("backends: [{name: lvm, volume_driver: x.Y}]\n")
    options = ["--endpoint", str(socket), "--config", f"{real_folder}/cinder.yaml", "--state", f"{real_folder}/state"]
    options += ["--kubelet-root", str(real_folder), "--interpreter", str(interpreter)]
    process = subprocess.Popen([sys.executable, "-m", "tonnage", "cinder", *options])
    try:
        while not socket.exists():
            assert process.poll() is None
            time.sleep(0.05)
        command = [str(program), "--csi.endpoint", f"unix://{socket}", "--csi.mountdir", f"{real_folder}/mount"]
        command += ["--csi.stagingdir", f"{real_folder}/staging", "--csi.testvolumesize", str(GI)]
        command += ["--csi.testvolumeexpandsize", str(2 * GI), "--ginkgo.no-color"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    finally:
        process.terminate()
        process.wait()
    assert ended.returncode == 0, ended.stdout[-20000:]
    assert " 71 Passed | 0 Failed " in ended.stdout
