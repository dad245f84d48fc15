"""Cinder's LVM driver, the kernel's iSCSI target and open-iscsi, in user-mode Linux: an own machine with all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

pytestmark = [pytest.mark.cinder, pytest.mark.real, pytest.mark.timeout(2000)]
NEEDED = ("iscsid", "lsscsi", "sg_scan", "lvm", "ip", "systemd-udevd")
MODULES = ("sd_mod", "iscsi_tcp", "target_core_mod", "target_core_iblock", "iscsi_target_mod", "configfs")
PRIVATE = """
set -e
cp -a /etc /run/etc && mount --bind /run/etc /etc  # what programs write there is the guest's own
mkdir -p /etc/target
echo 'activation { udev_sync=0 udev_rules=0 }' >>/etc/lvm/lvm.conf
export PATH=$PATH:/usr/sbin:/sbin
mount -t configfs configfs /sys/kernel/config
/lib/systemd/systemd-udevd --daemon
ip link set lo up
hostname guest
echo InitiatorName=iqn.2026-01.com.example:guest >/etc/iscsi/initiatorname.iscsi
iscsid
"""


@pytest.fixture
def before(tmp_path: Path) -> str:
    """Makes the guest a machine with iSCSI; skips where programs are missing."""
    need(*NEEDED)
    (tmp_path / "before").write_text(PRIVATE)
    return f". {tmp_path}/before"


def test_a_life_over_iscsi(guest_suite: Callable[..., Any], interpreter: Path, before: str) -> None:
    ended = guest_suite(
        "a volume of Cinder's LVM driver over iSCSI",
        "tests/cinder/guest_iscsi.py",
        before=f"{before} && lvm vgcreate --quiet storage /dev/ubda",
        disks=["10G"],
        modules=MODULES,
        seconds=1500.0,
        environment=[f"TONNAGE_CINDER_PYTHON={interpreter}"],
    )
    ended.check()


@pytest.mark.usefixtures("kubectl_program")
def test_a_box_by_kubectl(guest_suite: Callable[..., Any], interpreter: Path, before: str) -> None:
    """The page's folders are the guest's own, on a disk of their own."""
    ended = guest_suite(
        "Cinder's LVM driver in a box, by kubectl",
        "tests/cinder/guest_box.py",
        before=f"{before} && mkfs.ext4 -q /dev/ubdb && mount /dev/ubdb /var/lib",
        disks=["10G", "20G"],
        modules=MODULES,
        seconds=1500.0,
        environment=[f"TONNAGE_CINDER_PYTHON={interpreter}"],
    )
    ended.check()
