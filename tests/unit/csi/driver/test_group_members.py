"""What the members of a group snapshot say about it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tonnage.csi.driver.driver import MAX_VOLUME
from tonnage.csi.driver.group_members import SOURCES, GroupMember, group_of, is_complete, member_name, member_owner
from tonnage.storage.pools.base.contract import Snapshot, check_name
from tonnage.storage.pools.fake.backend import FakePool

NAMES = st.from_regex(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,63}", fullmatch=True)


@given(st.sets(NAMES, min_size=2), st.sets(NAMES, min_size=2))
def test_names_of_members_are_valid_and_differ(groups: set[str], volumes: set[str]) -> None:
    made = [member_name(group, f"pool/{volume}") for group in groups for volume in volumes]
    assert len(set(made)) == len(made)
    for name in made:
        assert len(check_name(name)) <= MAX_VOLUME


@given(st.lists(NAMES, min_size=1, unique=True), st.data())
def test_a_group_is_complete_with_all_members_of_the_same_sources(sources: list[str], data: st.DataObject) -> None:
    pool, owner = FakePool("p", 1), member_owner("g", sources)
    assert group_of(owner) == "g"
    assert member_owner("g", data.draw(st.permutations(sources))) == owner
    all_of_them = [GroupMember(pool, Snapshot(name, name, 1, owner=owner)) for name in sources]
    assert is_complete(all_of_them)
    assert not is_complete(all_of_them[1:])
    other = member_owner("g", [*sources[1:], "another source, which no name is"])
    assert other[SOURCES] != owner[SOURCES]
    mixed = [GroupMember(pool, replace(all_of_them[0].snapshot, owner=other)), *all_of_them[1:]]
    assert is_complete(mixed) == (len(sources) == 1)
