"""The pmem pool without memory: its description and what it rejects. The rest is in tests/vm/guest_pmem.py."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.host import ndctl
from tonnage.host.ndctl import Region
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.pmem.backend import PmemBackend
from tonnage.storage.pools.pmem.kind import PmemConfig
from tonnage.storage.pools.pmem.region import select

GI = 1024**3


@pytest.mark.parametrize(
    "text",
    ["pmem,name=pmem", "pmem:region1,name=fast,size=4Gi,mode=sector", "pmem:0xba90120012b4dc,name=x,mode=devdax"],
)
def test_descriptions(text: str) -> None:
    config = parse(text)
    assert parse(str(config)) == config
    pool = make(config)
    assert isinstance(pool.backend, PmemBackend)
    assert isinstance(config, PmemConfig)
    assert pool.backend.mode == (config.mode or "fsdax")


def test_all_regions_are_the_default() -> None:
    assert parse("pmem:all") == parse("pmem")


def test_lvm_in_between() -> None:
    pool = make(parse("pmem:region0,mode=lvm,name=cut"))
    assert isinstance(pool.backend, LvmBackend)
    features = pool.features
    assert (pool.kind, pool.backend.table.group, features.snapshots, features.clones, features.expansion) == (
        "pmem", "tonnage-cut", False, False, True,
    )  # fmt: skip
    assert not {"thin", "cowSize", "iops"} & features.parameters


@pytest.mark.parametrize("text", ["pmem:/dev/pmem0", "pmem:region", "pmem:0xZ", "pmem,mode=raw", "pmem,thin=x"])
def test_bad_descriptions(text: str) -> None:
    with pytest.raises(InvalidError):
        parse(text)


def region(name: str, *, labelled: bool = True, readonly: bool = False, cookie: int = 7) -> Region:
    return Region(name, 4 * GI, cookie, 16 * 1024**2, 4 * GI, 4 * GI, labelled=labelled, readonly=readonly, slots=1019)


def test_which_regions_a_pool_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [region("region0"), region("region1", labelled=False), region("region2", cookie=0xAB)]
    monkeypatch.setattr(ndctl, "regions", lambda: there)
    assert [found.name for found in select("", "p")] == ["region0", "region2"]
    assert [found.name for found in select("0xab", "p")] == ["region2"]
    with pytest.raises(UnavailableError, match="ndctl init-labels"):
        select("region1", "p")
    with pytest.raises(UnavailableError, match="no region region7"):
        select("region7", "p")
    there.clear()
    with pytest.raises(UnavailableError, match="no persistent memory"):
        select("", "p")


async def test_a_machine_without_memory_says_so() -> None:
    pool = make(parse("pmem,name=p"))
    if not ndctl.regions():
        with pytest.raises(UnavailableError, match="no persistent memory"):
            await pool.open()
    with pytest.raises(UnavailableError, match="not open"):
        await pool.list()
    with pytest.raises(UnavailableError, match="not open"):
        await pool.delete("a")
    await pool.close()
