"""Ids and safe names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tonnage.csi.driver import volume_id
from tonnage.pools.base.contract import check_name

CSI_NAMES = st.text(min_size=1, max_size=128)


@given(CSI_NAMES)
def test_a_name_becomes_safe_short_and_stays_the_same(name: str) -> None:
    safe = volume_id.safe_name(name)
    assert check_name(safe) == safe == volume_id.safe_name(name)
    assert len(volume_id.join("p" * volume_id.MAX_POOL, safe)) <= 128
    assert volume_id.split(volume_id.join("pool", safe)) == ("pool", safe)
    assert volume_id.lock_key(volume_id.join("pool", safe)) == safe


@given(CSI_NAMES, CSI_NAMES)
def test_two_names_never_meet(one: str, other: str) -> None:
    assert (volume_id.safe_name(one) == volume_id.safe_name(other)) == (one == other)


def test_usual_names_are_kept_and_others_are_told_by_a_hash() -> None:
    claim = "pvc-6d3f7a10-6c1c-4a9e-8d0e-9b8f6a6f2f51"
    assert volume_id.safe_name(claim) == claim
    mapped = volume_id.safe_name("a name/with ../ things")
    assert mapped.startswith("n-a-name-with-..-things-")
    assert volume_id.safe_name(mapped) != mapped, "a name in the mapped form could be somebody else's"
    handle = "csi-" + "a" * 64
    assert volume_id.inline_name(handle) == handle


def test_an_id_of_another_form_is_none_of_ours() -> None:
    for foreign in ("", "x", "/x", "pool/", "pool/a/b", "pool/-x", "pool/../x"):
        assert volume_id.split(foreign) is None
