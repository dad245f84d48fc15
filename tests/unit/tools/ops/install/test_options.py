"""What `tonnage manifests` takes, and every rejection's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tonnage.base.errors import InvalidError
from tonnage.tools.ops.install.options import (
    Class,
    parse_class,
    parse_groups,
    parse_pool,
    parse_secrets,
    parse_version,
    pool_folders,
)


def test_pool_as_in_a_file() -> None:
    assert parse_pool("image:/data,name=big,size=10Gi,rootfs=yes") == {
        "name": "big",
        "kind": "image",
        "path": "/data",
        "size": "10Gi",
        "rootfs": "yes",
    }
    assert parse_pool("lvm:vg0,thin=t") == {"name": "lvm", "kind": "lvm", "path": "vg0", "thin": "t"}


def test_class() -> None:
    assert parse_class("fast") == Class("fast")
    given = "fast,pool=nvme,erase=none,default=yes,reclaimPolicy=Retain,allowVolumeExpansion=yes"
    assert parse_class(given) == Class(
        "fast", {"pool": "nvme", "erase": "none"}, True, {"reclaimPolicy": "Retain", "allowVolumeExpansion": True}
    )


def test_secrets() -> None:
    assert parse_secrets(["a/x", "b", "a/y", "b/z"]) == {"a": ["x", "y"], "b": []}


def test_version() -> None:
    assert (parse_version("1.30"), parse_version("v1.36.3"), parse_version("1.9")) == ((1, 30), (1, 36), (1, 9))


def read_pool_folders(pools: list[dict[str, str]]) -> list[str]:
    return pool_folders(pools, "/k")


def test_folders_of_pools() -> None:
    pools = [{"path": path} for path in ("/a/b", "/a", "vg0", "/a", "/ab", "/k/pool", "/k")]
    assert pool_folders([*pools, {}], "/kubelet") == ["/a", "/ab", "/k"]
    assert pool_folders(pools[:-1], "/k") == ["/a", "/ab"]


@pytest.mark.parametrize(
    ("read", "given", "says"),
    [
        (parse_class, "Fast", "want NAME"),
        (parse_class, "fast,pool", "want key=value"),
        (parse_class, "fast,pool=a,pool=b", "each key once"),
        (parse_class, "fast,default=maybe", "default=maybe: want yes or no"),
        (parse_class, "fast,reclaimPolicy=Recycle", "want Delete or Retain"),
        (parse_class, "fast,volumeBindingMode=Late", "want Immediate or WaitForFirstConsumer"),
        (parse_secrets, ["A/x"], "want NAMESPACE or NAMESPACE/NAME"),
        (parse_secrets, ["a/"], "want NAMESPACE or NAMESPACE/NAME"),
        (parse_version, "latest", "want one as 1.36"),
        (parse_pool, "zfs:tank", "zfs"),
        (read_pool_folders, [{"name": "x", "path": "/a/../etc"}], "without '..'"),
        (read_pool_folders, [{"path": "/a//b"}], "without '..' or '//'"),
        (read_pool_folders, [{"name": "x", "path": "/k"}], "pool x: path /k: the agent's pod has another folder at /k"),
        (read_pool_folders, [{"path": "/run"}], "another folder at /run/lock/lvm; name a folder that does not hold it"),
    ],
)
def test_rejected(read: Callable[[Any], Any], given: Any, says: str) -> None:
    with pytest.raises(InvalidError) as rejected:
        read(given)
    assert says in str(rejected.value)


def test_groups() -> None:
    found = parse_groups(
        ["nvme:lvm:vg0,name=scratch", "hdd:image:/a", "nvme:memory,size=1Gi", "nvme:fake,name=f,size=1Gi"]
    )
    assert found == {
        "nvme": [
            {"name": "scratch", "kind": "lvm", "path": "vg0"},
            {"name": "memory", "kind": "fake", "size": "1Gi"},
            {"name": "f", "kind": "fake", "size": "1Gi"},
        ],
        "hdd": [{"name": "image", "kind": "image", "path": "/a"}],
    }


@pytest.mark.parametrize("text", ["nvme", "Nvme:lvm:vg0", "", ":lvm:vg0", f"{'a' * 41}:lvm:vg0", "nvme:nothing:/x"])
def test_groups_that_are_rejected(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_groups([text])
