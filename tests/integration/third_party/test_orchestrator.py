"""A volume's life with `tonnage driver`, driven by an orchestrator that is not Kubernetes: a CSI client in Go."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.programs import need

pytestmark = [pytest.mark.real, pytest.mark.programs]
VERBS = ("Probe", "GetCapacity", "CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeGetVolumeStats",
         "ControllerExpandVolume", "CreateSnapshot", "ListVolumes", "NodeUnpublishVolume", "NodeUnstageVolume",
         "DeleteVolume", "DeleteSnapshot")  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "btrfs"])
def test_a_volumes_life_without_kubernetes(
    real_folder: Path, own_disk: Path, go_program: Callable[[str], Path], kind: str
) -> None:
    """Created, mounted, grown, snapshotted, restored, deleted: each call twice, as after a lost answer."""
    fstype = "xfs" if kind == "image" else "btrfs"
    need(f"mkfs.{fstype}")
    program, socket = go_program("orchestrator"), real_folder / "csi.sock"
    pool = f"{kind}:{own_disk}/pool,size=2Gi" + (",sparse=yes" if kind == "image" else "")
    command = [sys.executable, "-m", "tonnage", "driver", f"--endpoint=unix://{socket}", f"--pool={pool}"]
    with (real_folder / "log").open("wb") as log:
        driver = subprocess.Popen(
            [*command, "--node-name=agent-7", f"--state={real_folder}/state"], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while not socket.exists():
            assert driver.poll() is None, (real_folder / "log").read_text()
            assert time.monotonic() < deadline, "the driver does not listen"
            time.sleep(0.02)
        ended = subprocess.run(
            [str(program), "-endpoint", str(socket), "-folder", str(real_folder / "volumes"), "-fstype", fstype],
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr + (real_folder / "log").read_text()
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=60) == 0
    finally:
        driver.kill()
        driver.wait()
    made = Counter(line.removeprefix("*csi.").removesuffix("Request") for line in ended.stdout.splitlines())
    assert set(VERBS) <= set(made)
    mounts = Path("/proc/mounts").read_text()
    assert str(real_folder / "volumes") not in mounts
    assert not list((own_disk / "pool").glob("pvc-*"))
