"""csi-sanity, the Go conformance suite, against `tonnage driver` as a process of its own, over every kind of pool."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.programs import need

from tonnage.host import loop, mount

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # a first build of csi-sanity takes minutes

VOLUME = 64 << 20
LEAST_PASSED = 77
NOT_OFFERED = (
    "ControllerPublishVolume", "ControllerUnpublishVolume", "Controller Publish, UnpublishVolume",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "ControllerModifyVolume", "Modify Volume", "Modify volume",
    "ControllerGetVolumeHealth", "ControllerListVolumeHealth", "NodeGetVolumeHealth",
    "NodeGetStorageHealth",
)  # fmt: skip
"""What the driver does not advertise; everything else has to be exercised."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path for sockets, on a disk with room; nothing may be mounted in it at the end."""
    made = Path(tempfile.mkdtemp(prefix="tonnage-sanity-", dir="/var/tmp"))
    yield made
    for line in Path("/proc/mounts").read_text().splitlines():
        assert str(made) not in line
    shutil.rmtree(made)


@contextmanager
def _driver(folder: Path, pool: str) -> Iterator[Path]:
    """`tonnage driver` over that pool; ends it politely."""
    socket = folder / "csi.sock"
    command = [sys.executable, "-m", "tonnage", "driver", "--endpoint", f"unix://{socket}", "--pool", pool]
    command += ["--node-name", "sanity", "--state", str(folder / "state")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while not socket.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)
        yield socket
        assert process.poll() is None, (folder / "log").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        assert not socket.exists()
    finally:
        process.kill()
        process.wait()


def _run(program: Path, folder: Path, socket: Path, *arguments: str) -> tuple[Counter[str], Counter[str]]:
    """Outcomes, and the reasons of what was skipped."""
    report, mutable = folder / "report.xml", folder / "mutable.yaml"
    mutable.write_text("erase: none\n")  # what every pool that can change a volume can change
    command = [
        str(program), "--csi.endpoint", f"unix://{socket}", "--csi.mountdir", str(folder / "mount"),
        "--csi.stagingdir", str(folder / "staging"), "--csi.testvolumesize", str(VOLUME), "--ginkgo.no-color",
        f"--ginkgo.junit-report={report}", "--csi.testvolumemutableparameters", str(mutable), *arguments,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert ended.returncode == 0, ended.stdout[-20000:] + ended.stderr
    outcomes: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        outcomes[case.get("status", "")] += 1
        reason = case.find("skipped")
        if case.get("status") == "skipped" and reason is not None:
            skipped[reason.get("message", "").removeprefix("skipped - ")] += 1
    return outcomes, skipped


KINDS = [("fake", "mount"), ("image", "mount"), ("image", "block"), ("btrfs", "mount")]
ELSEWHERE = os.environ.get("TONNAGE_TEST_POOL", "")
"""A pool as `lvm:vg0` that is tried instead: tests/vm does so in a guest. Which access: TONNAGE_TEST_ACCESS."""
if ELSEWHERE:
    KINDS = [("elsewhere", os.environ.get("TONNAGE_TEST_ACCESS", "mount"))]


@pytest.mark.parametrize(("kind", "access"), KINDS)
def test_conforms(
    kind: str, access: str, folder: Path, go_program: Callable[[str], Path], tell: Callable[[str], None],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if kind != "fake":
        request.getfixturevalue("real_folder")
        need("mkfs.btrfs" if kind == "btrfs" else "mkfs.ext4")
    where = f":{folder}/pool" if kind in ("image", "btrfs") else ""
    growing = ",sparse=yes,overcommit=yes" if where else ""
    program = go_program("sanity")

    with _driver(folder, ELSEWHERE or f"{kind}{where},size=10Gi{growing}") as socket:
        outcomes, skipped = _run(program, folder, socket, "--csi.testvolumeaccesstype", access)

    copies = not ELSEWHERE.startswith(("pmem", "quota"))
    tell(
        f"csi-sanity, {ELSEWHERE or kind} pool, {access}: {outcomes['passed']} passed, {outcomes['failed']} failed,"
        f" {outcomes['skipped']} skipped (not offered)"
    )
    assert not outcomes["failed"]
    assert outcomes["passed"] >= (LEAST_PASSED if copies else LEAST_PASSED_DISKS)
    allowed = NOT_OFFERED if copies else (*NOT_OFFERED, *WITHOUT_COPIES)
    unexplained = [r for r in skipped if r.removesuffix(" not supported") not in allowed]
    assert not unexplained
    left = {entry for entry in os.listdir(folder / "pool") if entry.endswith(".json")} if where else set()
    assert not left


DISKS = 12
LEAST_PASSED_DISKS = 42
WITHOUT_COPIES = (
    "CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "GetSnapshot", "Create, Delete snapshot", "Volume Cloning",
    "ControllerExpandVolume", "NodeExpandVolume", "Expand volume", "Snapshot", "Volume Expansion",
    "GroupControllerService",
)  # fmt: skip
"""What pools do not advertise whose volumes are disks of fixed sizes."""


@pytest.fixture
def disks(folder: Path, real_folder: Path) -> Iterator[Path]:
    """Prepared disks: file systems and devices of the size that csi-sanity asks for."""
    made = folder / "disks"
    made.mkdir(mode=0o755)
    loops = []
    for number in range(DISKS):
        mounted, image = made / f"m{number}", folder / f"{number}.img"
        mounted.mkdir()
        mount.mount("disk", mounted, "tmpfs", [f"size={VOLUME}"])
        image.touch()
        os.truncate(image, VOLUME)
        fd = os.open(image, os.O_RDWR)
        loops.append(loop.attach(fd, str(image), autoclear=False))
        os.close(fd)
        (made / f"b{number}").symlink_to(loop.device(loops[-1].index))
    yield made
    for number in range(DISKS):
        mount.umount(made / f"m{number}")
    for device in loops:
        loop.detach(device.index)


@pytest.mark.skipif(bool(ELSEWHERE), reason="another pool is tried")
@pytest.mark.parametrize("access", ["mount", "block"])
def test_a_pool_of_disks_conforms(
    access: str, folder: Path, disks: Path, go_program: Callable[[str], Path], tell: Callable[[str], None]
) -> None:
    program = go_program("sanity")

    with _driver(folder, f"static:{disks}") as socket:
        outcomes, skipped = _run(program, folder, socket, "--csi.testvolumeaccesstype", access)

    tell(
        f"csi-sanity, static pool, {access}: {outcomes['passed']} passed, {outcomes['failed']} failed,"
        f" {outcomes['skipped']} skipped (not offered)"
    )
    assert not outcomes["failed"]
    assert outcomes["passed"] >= LEAST_PASSED_DISKS
    unexplained = [r for r in skipped if r.removesuffix(" not supported") not in (*NOT_OFFERED, *WITHOUT_COPIES)]
    assert not unexplained
    left = [record for record in (disks / ".tonnage").glob("*.json") if b'"volume":{' in record.read_bytes()]
    assert not left
