"""Records as LVM tags."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tonnage.host import lvm
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.lvm.tags import (
    TagEntry,
    TagKind,
    change,
    decode,
    encode,
    is_ours,
    lv_name,
    snapshot_name,
    volume_name,
)

UUID_ = UUID("0b1c3cf0-3a5f-4a2b-8a7e-1d2e3f4a5b6c")
PAIRS = st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=60), max_size=4)


RECORD = VolumeRecord("a", 4096, UUID_, fstype="ext4")


@given(
    PAIRS,
    PAIRS,
    PAIRS,
    st.booleans(),
    st.floats(0, 1e10),
    st.sampled_from([kind for kind in TagKind if kind is not TagKind.COPY]),
    st.integers(0, 2**63 - 1),
)
def test_there_and_back(
    parameters: dict[str, str], owner: dict[str, str], mutable: dict[str, str], flag: bool, created: float,
    kind: TagKind, number: int,
) -> None:  # fmt: skip
    record = VolumeRecord(
        "pvc-1", 4096, UUID_, length=8192, block=flag, fstype="" if flag else "xfs", state="formatted",
        parameters=parameters, owner=owner, created=created, mutable=mutable, pending=flag, made=number,
        from_volume="b" if flag else "", from_snapshot="" if flag else "s", mkfs="" if flag else "-m reflink=0",
        from_folder="dir:///data/a b" if flag else "",
    )  # fmt: skip
    entry = TagEntry(kind, record, "shred" if kind is TagKind.ERASING else "", number)
    tags = encode(entry)
    assert is_ours(tags)
    assert decode(["somebody=else", *reversed(tags)]) == entry


def test_tags_of_others() -> None:
    assert not is_ours(["tonnage", "x.v=1"])


@pytest.mark.parametrize("missing", ["name", "size", "length", "uuid", "state", "fs", "created"])
def test_a_missing_tag_is_damage(missing: str) -> None:
    tags = encode(TagEntry(TagKind.VOLUME, replace(RECORD, version=1)))
    with pytest.raises(ValueError, match=f"no tag tonnage.{missing}"):
        decode([tag for tag in tags if not tag.startswith(f"tonnage.{missing}=")])


@pytest.mark.parametrize(
    "tag",
    [
        "tonnage.state=odd",
        "tonnage.size=x",
        "tonnage.name=../x",
        "tonnage.uuid=1",
        "tonnage.kind=odd",
        "tonnage.made=x",
    ],
)
def test_a_wrong_tag_is_damage(tag: str) -> None:
    key = tag.partition("=")[0]
    tags = [t for t in encode(TagEntry(TagKind.VOLUME, replace(RECORD, version=1))) if not t.startswith(f"{key}=")]
    with pytest.raises(ValueError, match=r".+"):
        decode([*tags, tag])


def test_a_later_format() -> None:
    with pytest.raises(ValueError, match=r"newer tonnage \(format 3\)"):
        decode(encode(TagEntry(TagKind.VOLUME, replace(RECORD, version=3))))


def test_a_record_of_the_first_format_has_no_checksum() -> None:
    old = TagEntry(TagKind.VOLUME, replace(RECORD, version=1))
    assert not any(tag.startswith("tonnage.sum=") for tag in encode(old))
    assert decode(encode(old)) == old
    unsealed = [tag for tag in encode(TagEntry(TagKind.VOLUME, RECORD)) if not tag.startswith("tonnage.sum=")]
    with pytest.raises(ValueError, match="it has no checksum"):
        decode(unsealed)


def test_two_values_are_damage() -> None:
    tags = encode(TagEntry(TagKind.VOLUME, replace(RECORD, version=1)))
    with pytest.raises(ValueError, match=r"two tags tonnage\.size"):
        decode([*tags, "tonnage.size=8192"])


def test_a_change_is_what_differs() -> None:
    before = TagEntry(TagKind.VOLUME, RECORD)
    tags = [*encode(before), "somebody=else"]
    assert change(tags, before) == []
    ready = TagEntry(TagKind.VOLUME, replace(RECORD, state="formatted"))
    words = change(tags, ready)
    assert {"tonnage.state=formatted", "tonnage.state=new"} < set(words)
    assert (words.count("--addtag"), words.count("--deltag")) == (2, 2)  # the checksum is the other one
    limited = TagEntry(TagKind.VOLUME, replace(RECORD, mutable={"iops": "100"}))
    assert "tonnage.m.iops=100" in change(tags, limited)
    assert "tonnage.m.iops=100" in change(encode(limited), before)


def test_an_erasure_is_a_job() -> None:
    record = replace(RECORD, length=8192)
    job = TagEntry(TagKind.ERASING, record, "zero", 4096).job()
    assert (job.key, job.name, job.method, job.length, job.reserved, job.done) == (
        UUID_.hex,
        "a",
        "zero",
        8192,
        4096,
        4096,
    )


def test_only_volumes_have_names_without_a_plus() -> None:
    assert lv_name("vg0", TagEntry(TagKind.VOLUME, RECORD)) == "a"
    assert lv_name("vg0", TagEntry(TagKind.SNAPSHOT, RECORD)) == "s+a"
    for kind in (TagKind.COPY, TagKind.ORIGIN, TagKind.ERASING, TagKind.SCRATCH):
        assert (
            lv_name("vg0", TagEntry(kind, RECORD))
            == f"{kind.value[0] if kind is not TagKind.SCRATCH else 'x'}+{UUID_.hex}"
        )


@given(st.from_regex(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}", fullmatch=True))
def test_every_name_has_a_volume_of_its_own_that_lvm_allows(name: str) -> None:
    assert lvm.fits("vg0", volume_name("vg0", name))
    assert volume_name("vg0", name) != volume_name("vg0", f"{name[:100]}x.")
    assert lvm.fits("vg0", snapshot_name("vg0", name))
    assert snapshot_name("vg0", name) not in (volume_name("vg0", name), snapshot_name("vg0", f"{name[:100]}x."))
