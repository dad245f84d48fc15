"""The QEMU guest itself, and the suites that run in it: persistent memory, which the machine does not have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.programs import found, need

pytestmark = [pytest.mark.qemu, pytest.mark.real, pytest.mark.timeout(3000)]


def test_a_command_its_exit_code_and_its_memory(in_qemu: Callable[..., Any], tmp_path: Path) -> None:
    script = f'echo out; echo err >&2; echo written >{tmp_path}/file; ls /sys/bus/nd/devices; pwd; exit "$CODE"'
    ended = in_qemu(["sh", "-c", script], disks=["64M", "64M"], environment=["CODE=3"])
    words = ended.out.split()
    assert (ended.code, words[0], ended.err.strip()) == (3, "out", "err")
    assert {"region0", "region1"} < set(words)
    assert Path(words[-1]) == Path(__file__).parents[2]
    assert (tmp_path / "file").read_text() == "written\n"


def test_time_is_up_and_no_process_is_left(in_qemu: Callable[..., Any]) -> None:
    ended = in_qemu(["sh", "-c", "sleep 1000 & exec sleep 1000"], seconds=4)
    assert ended.code == 124
    assert "not done after 4 s" in ended.err


CONTRACT = "tests/conformance/test_pools.py"
SECONDS = 2700.0
"""Far above what a suite takes, for machines that do other things as well."""
PATIENCE = "--timeout=900"
"""For each test inside."""
LABELS = "ndctl disable-region all && ndctl init-labels --force all && ndctl enable-region all"
ONE_LABELLED = "ndctl disable-region all && ndctl init-labels --force nmem0 && ndctl enable-region all"


IN_LVM = "device or grow or raw_block or outlive or have_is_rejected"
"""What is another thing with LVM in between; LVM itself is held against all of the contract in user-mode Linux."""


@pytest.mark.parametrize(
    ("pool", "chosen"),
    [
        pytest.param("pmem:region0", "", id="fsdax"),
        pytest.param("pmem:region0,mode=sector", "life or size_is_a_limit or raw_block or outlive", id="sector"),
        pytest.param("pmem:region0,mode=lvm", IN_LVM, id="lvm"),
    ],
)
def test_contract_of_pools(qemu_suite: Callable[..., Any], pool: str, chosen: str) -> None:
    ended = qemu_suite(
        f"the contract of pools over {pool}",
        CONTRACT,
        PATIENCE,
        *(["-k", chosen] if chosen else []),
        before=LABELS,
        disks=["40G"],
        seconds=SECONDS,
        environment=[f"TONNAGE_TEST_POOL={pool}"],
    )
    ended.check()


def test_pmem(qemu_suite: Callable[..., Any]) -> None:
    suite = "tests/vm/guest_pmem.py"
    disks = ["2G", "1G"]
    qemu_suite("persistent memory", suite, PATIENCE, disks=disks, before=ONE_LABELLED, seconds=SECONDS).check()


def test_content(qemu_suite: Callable[..., Any]) -> None:
    """Kills are those of other pools: the same code fills all devices."""
    qemu_suite(
        "content",
        "tests/vm/guest_content.py",
        PATIENCE,
        "-k",
        "stays or cannot",
        before=ONE_LABELLED,
        disks=["1G"],
        seconds=SECONDS,
        environment=["TONNAGE_TEST_POOL=pmem:region0"],
    ).check()


def test_damage(qemu_suite: Callable[..., Any], pytestconfig: pytest.Config) -> None:
    count, kinds = pytestconfig.getoption("--guest-damage", 4), "pmem,pmem block"
    ended = qemu_suite(
        f"damaged records, {kinds}",
        "tests/vm/guest_damage.py",
        PATIENCE,
        before=LABELS,
        disks=["1G"],
        seconds=SECONDS,
        environment=[f"DAMAGE={count}", f"DAMAGE_KINDS={kinds}"],
    )
    ended.check()


def test_selinux(qemu_suite: Callable[..., Any]) -> None:
    """Every kind of pool: only a kernel that enforces shows which labels a pod's files have, and who may use them."""
    need("secilc")
    ended = qemu_suite(
        "volumes on a node with SELinux",
        "tests/vm/guest_selinux.py",
        PATIENCE,
        before=LABELS,
        disks=["1G"],
        boot=["selinux=1", "security=selinux"],
        seconds=SECONDS,
    )
    ended.check()


def test_sanity(qemu_suite: Callable[..., Any], tell: Callable[[str], None]) -> None:
    """csi-sanity in the guest, against a driver in the guest; its program is built before."""
    found("sanity")
    pool = "pmem:region0"
    ended = qemu_suite(
        f"csi-sanity over {pool}",
        "tests/integration/third_party/test_sanity.py::test_conforms",
        PATIENCE,
        before=LABELS,
        disks=["12G"],
        seconds=SECONDS,
        environment=[f"TONNAGE_TEST_POOL={pool}", "TONNAGE_TEST_ACCESS=mount"],
    )
    ended.check()
    for line in re.findall(r"^csi-sanity, .*", ended.out, re.MULTILINE):
        tell(f"{line}, in QEMU")
