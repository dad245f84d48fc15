"""The guest itself, and the suites that run in it: LVM and project quotas, which the machine's own kernel may not have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.programs import found, need

pytestmark = [pytest.mark.uml, pytest.mark.real, pytest.mark.timeout(2000)]
SECONDS = 600.0
"""Far above what a suite takes, for machines that do other things as well."""
CONTRACT = "tests/conformance/test_pools.py"


GROUP = "lvm vgcreate --quiet vg0 /dev/ubda"
QUOTA = "mkfs.xfs -q /dev/ubda && mkdir /run/disk && mount -o prjquota /dev/ubda /run/disk"


def test_a_command_and_its_exit_code(in_guest: Callable[..., Any], tmp_path: Path) -> None:
    script = (
        f'echo out; echo err >&2; echo written >{tmp_path}/file; test -b /dev/ubda -a -b /dev/ubdb; pwd; exit "$CODE"'
    )
    ended = in_guest(["sh", "-c", script], disks=["1M", "1M"], environment=["CODE=3"])
    assert (ended.code, ended.out.splitlines()[0], ended.err.strip()) == (3, "out", "err")
    assert Path(ended.out.splitlines()[1]) == Path(__file__).parents[2]
    assert (tmp_path / "file").read_text() == "written\n"


def test_a_command_that_is_not_there(in_guest: Callable[..., Any]) -> None:
    ended = in_guest(["no-such-program"])
    assert ended.code == 127
    assert "no-such-program" in ended.err


def test_time_is_up_and_no_process_is_left(in_guest: Callable[..., Any]) -> None:
    ended = in_guest(["sh", "-c", "sleep 1000 & exec sleep 1000"], seconds=6)
    assert ended.code == 124
    assert "not done after 6 s" in ended.err


@pytest.mark.parametrize(
    "pool", [pytest.param("lvm:vg0", id="thick"), pytest.param("lvm:vg0,thin=pool,thinsize=33Gi", id="thin")]
)
def test_contract_of_pools(guest_suite: Callable[..., Any], pool: str) -> None:
    need("lvm")
    ended = guest_suite(
        f"the contract of pools over {pool}",
        CONTRACT,
        before=GROUP,
        disks=["40G"],
        seconds=SECONDS,
        environment=[f"TONNAGE_TEST_POOL={pool}"],
    )
    ended.check()


@pytest.mark.parametrize("suite", ["lvm", "lvm_copies", "lvm_groups", "lvm_health", "lvm_stale", "lvm_trash"])
def test_lvm(guest_suite: Callable[..., Any], suite: str) -> None:
    need("lvm")
    file = f"tests/vm/guest_{suite}.py"
    guest_suite(f"LVM, {file}", file, disks=["2G", "2G", "1G"], seconds=SECONDS).check()


def test_undelete_by_kubectl(guest_suite: Callable[..., Any]) -> None:
    """On a node with pools of thick and of thin volumes, each in a group of its own."""
    need("lvm")
    guest_suite(
        "undelete by kubectl, LVM",
        "tests/vm/guest_box_trash.py",
        before=f"{GROUP} && {GROUP.replace('vg0', 'vg1').replace('ubda', 'ubdb')}",
        disks=["1G", "1G"],
        seconds=SECONDS,
    ).check()


def test_contract_over_quotas(guest_suite: Callable[..., Any]) -> None:
    pool = "quota:/run/disk/pool,overcommit=yes"
    ended = guest_suite(
        f"the contract of pools over {pool}",
        CONTRACT,
        before=QUOTA,
        disks=["40G"],
        seconds=SECONDS,
        environment=[f"TONNAGE_TEST_POOL={pool}"],
    )
    ended.check()


def test_quotas(guest_suite: Callable[..., Any]) -> None:
    guest_suite("project quotas", "tests/vm/guest_quota.py", disks=["2G"], seconds=SECONDS).check()


def test_content(guest_suite: Callable[..., Any]) -> None:
    need("lvm")
    before = f"{GROUP} && {QUOTA.replace('ubda', 'ubdb')}"
    guest_suite("content", "tests/vm/guest_content.py", before=before, disks=["2G", "2G"], seconds=SECONDS).check()


def test_pools_of_before(guest_suite: Callable[..., Any]) -> None:
    """Project quotas and LVM of earlier versions, each on a disk of its own."""
    need("lvm")
    disks = [f"/dev/ubd{letter}" for letter in "abcdefgh"]
    environment = [f"TONNAGE_TEST_DISKS={' '.join(disks)}"]
    file = "tests/upgrade/test_pools.py"
    guest_suite("pools of before", file, disks=["400M"] * len(disks), seconds=SECONDS, environment=environment).check()


@pytest.mark.parametrize("kinds", ["lvm thick,lvm thick block,lvm thin,lvm thin block", "quota xfs,quota ext4"])
def test_damage(guest_suite: Callable[..., Any], kinds: str, pytestconfig: pytest.Config) -> None:
    if "lvm" in kinds:
        need("lvm")
    count = pytestconfig.getoption("--guest-damage", 4)
    ended = guest_suite(
        f"damaged records, {kinds}",
        "tests/vm/guest_damage.py",
        disks=["2G", "2G"],
        seconds=SECONDS,
        environment=[f"DAMAGE={count}", f"DAMAGE_KINDS={kinds}"],
    )
    ended.check()


@pytest.mark.parametrize(
    ("pool", "before", "access"),
    [
        pytest.param("lvm:vg0,size=10Gi", GROUP, "mount", id="lvm thick"),
        pytest.param("lvm:vg0,thin=pool,thinsize=11Gi", GROUP, "block", id="lvm thin, raw block"),
        pytest.param("quota:/run/disk/pool,size=10Gi", QUOTA, "mount", id="quota"),
    ],
)
def test_sanity(
    guest_suite: Callable[..., Any], pool: str, before: str, access: str, tell: Callable[[str], None]
) -> None:
    """csi-sanity in the guest, against a driver in the guest; its program is built before."""
    if before == GROUP:
        need("lvm")
    found("sanity")
    ended = guest_suite(
        f"csi-sanity over {pool}",
        "tests/integration/third_party/test_sanity.py::test_conforms",
        before=before,
        disks=["12G"],
        seconds=SECONDS,
        environment=[f"TONNAGE_TEST_POOL={pool}", f"TONNAGE_TEST_ACCESS={access}"],
    )
    ended.check()
    for line in re.findall(r"^csi-sanity, .*", ended.out, re.MULTILINE):
        tell(f"{line}, in user-mode Linux")
