"""Ids and safe names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tonnage.csi.driver.driver import MAX_POOL, id_of, inline_name, lock_name, safe_name, split_id
from tonnage.storage.pools.base.contract import check_name

CSI_NAMES = st.text(min_size=1, max_size=128)


@given(CSI_NAMES)
def test_a_name_becomes_safe_short_and_stays_the_same(name: str) -> None:
    safe = safe_name(name)
    assert check_name(safe) == safe == safe_name(name)
    assert len(id_of("p" * MAX_POOL, safe)) <= 128
    assert split_id(id_of("pool", safe)) == ("pool", safe)
    assert lock_name(id_of("pool", safe)) == safe


@given(CSI_NAMES, CSI_NAMES)
def test_two_names_never_meet(one: str, other: str) -> None:
    assert (safe_name(one) == safe_name(other)) == (one == other)


def test_usual_names_are_kept_and_others_are_told_by_a_hash() -> None:
    claim = "pvc-6d3f7a10-6c1c-4a9e-8d0e-9b8f6a6f2f51"
    assert safe_name(claim) == claim
    mapped = safe_name("a name/with ../ things")
    assert mapped.startswith("n-a-name-with-..-things-")
    assert safe_name(mapped) != mapped, "a name in the mapped form could be somebody else's"
    handle = "csi-" + "a" * 64
    assert inline_name(handle) == handle


def test_an_id_of_another_form_is_none_of_ours() -> None:
    for foreign in ("", "x", "/x", "pool/", "pool/a/b", "pool/-x", "pool/../x"):
        assert split_id(foreign) is None
