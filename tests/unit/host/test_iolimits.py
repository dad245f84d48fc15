"""Which cgroup is a pod's, and how its IO is limited there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, PreconditionError, UnsupportedError
from tonnage.host.iolimits import Cgroup, Cgroups, origin

UID = "0f1e2d3c-1111-2222-3333-444455556666"
SLICE = UID.replace("-", "_")
OTHER = "0f1e2d3c-1111-2222-3333-444455556667"
V1_FILES = ("read_iops", "write_iops", "read_bps", "write_bps")


def _hierarchy(root: Path, *, v2: bool) -> Path:
    """An empty hierarchy that looks like the kernel's."""
    top = root if v2 else root / "blkio"
    top.mkdir(exist_ok=True)
    (top / "cgroup.procs").touch()
    if v2:
        (top / "cgroup.controllers").write_text("cpu io memory\n")
        (top / "cgroup.subtree_control").write_text("")
    return top


def _group(top: Path, name: str, *, v2: bool) -> Path:
    group = top / name
    group.mkdir(parents=True)
    for file in ["io.max"] if v2 else [f"blkio.throttle.{key}_device" for key in V1_FILES]:
        (group / file).touch()
    return group


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        f"kubepods/pod{UID}",
        f"kubepods/burstable/pod{UID}",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods.slice/kubepods-pod{SLICE}.slice",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice",
        f"tonnage/pod{UID}",
        f"kubelet/kubepods/burstable/pod{UID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice",
        f"docker/123/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice",
    ],
)
def test_a_pods_group_is_found_by_every_way_to_name_it(tmp_path: Path, name: str, v2: bool) -> None:
    top = _hierarchy(tmp_path, v2=v2)
    group = _group(top, name, v2=v2)
    (top / "system.slice" / "deep" / "er").mkdir(parents=True)
    found = Cgroups(tmp_path)
    for _ in range(2):
        assert found.pod(UID) == Cgroup(group, v2=v2)
    with pytest.raises(PreconditionError, match=f"pod {OTHER} has no cgroup"):
        found.pod(OTHER)


def test_what_a_pod_made_itself_is_not_taken_for_a_pods_group(tmp_path: Path) -> None:
    top = _hierarchy(tmp_path, v2=True)
    _group(top, f"kubelet/kubepods/pod{OTHER}/pod{UID}", v2=True)
    (top / "kubepods").mkdir()
    (top / "elsewhere").mkdir()
    (top / "kubelet" / f"pod{UID}-link").symlink_to(top / "elsewhere")
    (top / "way").symlink_to(tmp_path)
    with pytest.raises(PreconditionError, match="has no cgroup"):
        Cgroups(tmp_path).pod(UID)
    for bad in ("", "../x", "a/b", "..", "x" * 64):
        with pytest.raises(PreconditionError, match="is none"):
            Cgroups(tmp_path).pod(bad)


def test_limits_in_v2_are_one_line(tmp_path: Path) -> None:
    group = Cgroup(_group(_hierarchy(tmp_path, v2=True), f"kubepods/pod{UID}", v2=True), v2=True)
    file = group.path / "io.max"
    group.limit((7, 3), iops=100, bandwidth=1 << 20)
    assert file.read_text() == "7:3 riops=100 wiops=100 rbps=1048576 wbps=1048576"
    file.write_text("")
    group.limit((7, 3))
    assert file.read_text() == "7:3 riops=max wiops=max rbps=max wbps=max"
    file.unlink()
    with pytest.raises(HostError, match="the io controller is not on"):
        group.limit((7, 3), iops=1)
    Cgroup(tmp_path / "gone", v2=True).limit((7, 3), iops=1)


def test_limits_in_v1_are_set_for_every_group_below_too(tmp_path: Path) -> None:
    top = _hierarchy(tmp_path, v2=False)
    pod = _group(top, f"kubepods/pod{UID}", v2=False)
    container = _group(pod, "0123abcd", v2=False)
    Cgroup(pod, v2=False).limit((7, 3), iops=100, bandwidth=200)
    for group in (pod, container):
        told = [(group / f"blkio.throttle.{key}_device").read_text() for key in V1_FILES]
        assert told == ["7:3 100", "7:3 100", "7:3 200", "7:3 200"]


def test_a_machine_without_the_controller(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="IO cannot be limited on this node"):
            Cgroups(tmp_path).top()
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("io")
    assert Cgroups(tmp_path).top() == Cgroup(tmp_path / "unified", v2=True)


def test_a_group_by_name(tmp_path: Path) -> None:
    top = _hierarchy(tmp_path, v2=True)
    (top / "nomad.slice").mkdir()
    assert Cgroups(tmp_path).named("/nomad.slice").path == top / "nomad.slice"
    for bad in ("nothing", "../x", "nomad.slice/../.."):
        with pytest.raises(PreconditionError, match="there is no cgroup"):
            Cgroups(tmp_path).named(bad)


def test_a_device_without_a_file_is_known_by_its_number() -> None:
    assert origin((0, 99999)) == "0:99999"


@pytest.mark.real
def test_the_kernel_takes_them(own_group: Cgroup) -> None:
    """On this machine's own hierarchy, for a device that is there."""
    device = next(
        (os.major(number), os.minor(number))
        for number in (os.stat(f"/dev/{name}").st_rdev for name in sorted(os.listdir("/sys/block")) if os.path.exists(f"/dev/{name}"))
    )  # fmt: skip
    own_group.limit(device, iops=1000, bandwidth=1 << 30)
    file = "io.max" if own_group.v2 else "blkio.throttle.write_iops_device"
    assert f"{device[0]}:{device[1]}" in (own_group.path / file).read_text()
    assert "1000" in (own_group.path / file).read_text()
    own_group.limit(device)
    assert (own_group.path / file).read_text() == ""
