"""Records as LVM tags."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.host import lvm
from tonnage.pools.base import State
from tonnage.pools.directory import Record
from tonnage.pools.lvmrecord import Newer, StateChange, decode, encode, is_ours, volume_name

UUID_ = UUID("0b1c3cf0-3a5f-4a2b-8a7e-1d2e3f4a5b6c")
PAIRS = st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=60), max_size=4)


@given(PAIRS, PAIRS, st.booleans(), st.floats(0, 1e10))
def test_there_and_back(parameters: dict[str, str], owner: dict[str, str], block: bool, created: float) -> None:
    record = Record(
        "pvc-1", 4096, UUID_, length=8192, block=block, fstype="" if block else "xfs", state="formatted",
        parameters=parameters, owner=owner, created=created,
    )  # fmt: skip
    tags = encode(record)
    assert is_ours(tags)
    assert decode(["somebody=else", *reversed(tags)]) == record


def test_tags_of_others() -> None:
    assert not is_ours(["tonnage", "x.v=1"])


@pytest.mark.parametrize("missing", ["name", "size", "length", "uuid", "state", "fs", "created"])
def test_a_missing_tag_is_damage(missing: str) -> None:
    tags = encode(Record("a", 4096, UUID_, fstype="ext4"))
    with pytest.raises(ValueError, match=f"no tag tonnage.{missing}"):
        decode([tag for tag in tags if not tag.startswith(f"tonnage.{missing}=")])


@pytest.mark.parametrize("tag", ["tonnage.state=odd", "tonnage.size=x", "tonnage.name=../x", "tonnage.uuid=1"])
def test_a_wrong_tag_is_damage(tag: str) -> None:
    key = tag.partition("=")[0]
    tags = [t for t in encode(Record("a", 4096, UUID_, fstype="ext4")) if not t.startswith(f"{key}=")]
    with pytest.raises(ValueError, match=r".+"):
        decode([*tags, tag])


def test_a_later_format() -> None:
    with pytest.raises(Newer, match="format 2"):
        decode(["tonnage.v=2", "tonnage.colour=red"])


def test_a_state_replaces_every_other() -> None:
    arguments = StateChange(State.FORMATTED).arguments()
    assert arguments == ["--addtag", "tonnage.state=formatted", "--deltag", "tonnage.state=new"]


@given(st.from_regex(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}", fullmatch=True))
def test_every_name_has_a_volume_of_its_own_that_lvm_allows(name: str) -> None:
    assert lvm.fits("vg0", volume_name("vg0", name))
    assert volume_name("vg0", name) != volume_name("vg0", f"{name[:100]}x.")
