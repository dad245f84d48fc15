"""Pools from their description."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError, TonnageError
from tonnage.storage.pools import kinds
from tonnage.storage.pools.base.contract import Keep
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.directory.backend import DirectoryBackend
from tonnage.storage.pools.directory.kind import DirectoryConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage.storage.pools.fake.kind import FakeConfig
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.kind import LvmConfig

GI = 1024**3


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("fake,size=30716Mi", FakeConfig(kinds.get("fake"), name="fake", size=30716 * 1024**2)),
        ("memory,size=1Gi", FakeConfig(kinds.get("fake"), name="memory", size=GI)),
        ("memory,name=m,size=1Gi", FakeConfig(kinds.get("fake"), name="m", size=GI)),
        (
            "image:/var/lib/tonnage,size=100Gi",
            DirectoryConfig(kinds.get("image"), Path("/var/lib/tonnage"), "image", 100 * GI),
        ),
        (
            "image:/p,rootfs=yes,keep=10Gi",
            DirectoryConfig(kinds.get("image"), Path("/p"), "image", rootfs=True, keep=Keep(10 * GI)),
        ),
        (
            "quota:/p,rootfs=no,keep=7.5%",
            DirectoryConfig(kinds.get("quota"), Path("/p"), "quota", rootfs=False, keep=Keep(0, 7.5)),
        ),
        ("btrfs:/p,keep=0", DirectoryConfig(kinds.get("btrfs"), Path("/p"), "btrfs", keep=Keep())),
        ("image:/a:b,name=fast,sparse=yes", DirectoryConfig(kinds.get("image"), Path("/a:b"), "fast", sparse=True)),
        ("image,overcommit=1.5", DirectoryConfig(kinds.get("image"), name="image", overcommit=1.5)),
        (
            "btrfs:/p,size=1,overcommit=yes",
            DirectoryConfig(kinds.get("btrfs"), Path("/p"), "btrfs", 1, overcommit=float("inf")),
        ),
        ("lvm:vg-1,size=1Gi", LvmConfig(kinds.get("lvm"), None, "lvm", GI, group="vg-1")),
        (
            "lvm:vg0,name=t,thin=pool,thinsize=2Gi,overcommit=1.5",
            LvmConfig(kinds.get("lvm"), None, "t", overcommit=1.5, group="vg0", thin="pool", thin_size=2 * GI),
        ),
        (
            "image:/p,eraserate=200Mi",
            DirectoryConfig(kinds.get("image"), Path("/p"), "image", erase_rate=200 * 1024**2),
        ),
        ("fake,size=2k,inline=1k", FakeConfig(kinds.get("fake"), None, "fake", 2000, inline=1000)),
        ("fake,size=1k,eraserate=0", FakeConfig(kinds.get("fake"), None, "fake", 1000, erase_rate=0)),
        (
            "fake,size=1k,largest=500,directories=no",
            FakeConfig(kinds.get("fake"), None, "fake", 1000, largest=500, directories=False),
        ),
    ],
)
def test_parse(text: str, config: PoolConfig) -> None:
    assert parse(text) == config
    assert parse(str(config)) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown kind ''"),
        ("zfs:/tank", "unknown kind 'zfs', want one of image, btrfs"),
        ("image:/p,colour=red", "image has no option 'colour', it has name, size"),
        ("fake,sparse=yes", "fake has no option 'sparse'"),
        ("image:/p,size", "want size=VALUE once"),
        ("image:/p,size=", "want size=VALUE once"),
        ("image:/p,size=1Gi,size=2Gi", "once"),
        ("image:/p,", "no option ''"),
        ("image:/p,keep=100%", "keep=100%: want a share of the disk below 100%, or bytes"),
        ("image:/p,keep=-1%", "keep=-1%: want a share"),
        ("image:/p,keep=-1", "keep=-1: want bytes, as 10Gi, or a share of the disk, as 15%"),
        ("image:/p,rootfs=maybe", "rootfs=maybe: want yes or no"),
        ("fake,rootfs=yes", "fake has no option 'rootfs'"),
        ("image:/p,size=0", "more than 0"),
        ("image:/p,size=1Gi,inline=2Gi", "inline=2Gi: more than the pool's size=1Gi"),
        ("static:/p,inline=2Gi", "static has no option 'inline'"),
        ("image:/p,eraserate=-1", "eraserate=-1: want bytes in a second, as 200Mi, or 0"),
        ("image:/p,size=-1Gi", "more than 0"),
        ("image:/p,size=many", "not a quantity"),
        ("image:relative", "absolute path"),
        ("image:/p\0q", "absolute path"),
        ("fake:/p,size=1Gi", "a fake pool has no path, leave it out"),
        ("image:/p,name=../x", "volume name"),
        ("image:/p,sparse=perhaps", "want yes or no"),
        ("image:/p,overcommit=0.5", "ratio of at least 1"),
        ("lvm", "volume group ''"),
        ("lvm:/dev/sda", "volume group '/dev/sda'"),
        ("lvm:vg0,sparse=yes", "lvm has no option 'sparse', it has name, size, inline, thin"),
        ("lvm:vg0,overcommit=2", "overcommit is of a thin pool"),
        ("lvm:vg0,overcommit=1", "overcommit is of a thin pool"),
        ("lvm:vg0,overcommit=no", "overcommit is of a thin pool"),
        ("lvm:vg0,thinsize=1Gi", "thinsize is of a thin pool"),
        ("lvm:vg0,thin=a/b", "thin pool 'a/b'"),
        ("image:/p,overcommit=nan", "ratio of at least 1"),
    ],
)
def test_rejected_by_name(text: str, words: str) -> None:
    with pytest.raises(InvalidError, match=words.replace("(", r"\(")):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_rejected(text: str) -> None:
    try:
        config = parse(text)
    except TonnageError:
        return
    assert parse(str(config)) == config


def test_make(tmp_path: Path) -> None:
    memory = make(parse("fake,name=m,size=1Gi"))
    image = make(parse(f"image:{tmp_path},size=1Gi,sparse=yes"))
    btrfs = make(parse("btrfs,size=1Gi").at(tmp_path))
    quota = make(parse(f"quota:{tmp_path},size=1Gi"))
    lvm = make(parse("lvm:vg0,thin=pool,overcommit=2"))
    assert isinstance(lvm.backend, LvmBackend)
    table = lvm.backend.table
    assert (lvm.name, table.group, table.bounds.thin, table.bounds.ratio) == ("lvm", "vg0", "pool", 2.0)
    assert isinstance(memory, FakePool)
    assert [pool.kind for pool in (image, btrfs, quota)] == ["image", "btrfs", "quota"]
    assert (memory.name, image.name, btrfs.name) == ("m", "image", "btrfs")
    assert isinstance(image.backend, DirectoryBackend)
    assert image.backend.folder.bounds.sparse
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lvm:v,thin=t,overcommit=yes", "needs size="),
        ("memory", "needs size="),
        ("image,size=1Gi", "needs a directory"),
        ("image:/p,overcommit=yes", "needs size="),
    ],
)
def test_make_rejects(text: str, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        make(parse(text))
