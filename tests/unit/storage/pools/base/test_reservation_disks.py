"""The account of a disk that several pools promise from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import DoesNotFitError, ExhaustedError
from tonnage.storage.pools.base.contract import NO_KEEP, Keep
from tonnage.storage.pools.base.reservation import Disks, SharedDisk

MI = 1024**2
ANY = float("inf")
ANY_SIZE = 2**62


class Small(SharedDisk):
    """A disk with so much free."""

    def __init__(self, path: Path, free: int) -> None:
        super().__init__(path)
        self.left = free

    def free(self) -> int:
        return self.left


def _sparse(path: Path, length: int, written: int = 0) -> Path:
    with path.open("wb") as file:
        file.truncate(length)
        file.write(os.urandom(written))
        file.flush()
        os.fsync(file.fileno())
    return path


def test_what_is_promised_is_not_promised_again(tmp_path: Path) -> None:
    disk = Small(tmp_path, 100 * MI)
    disk.reserve(_sparse(tmp_path / "a", 60 * MI), 60 * MI, ratio=1.0)
    assert disk.free_bytes(ratio=1.0, enough=100 * MI) == 40 * MI
    with pytest.raises(ExhaustedError, match=r"40Mi that is neither used nor reserved, 50Mi are needed"):
        disk.reserve(tmp_path / "b", 50 * MI, ratio=1.0)
    disk.reserve(tmp_path / "b", 40 * MI, ratio=1.0)
    disk.forget(tmp_path / "a")
    disk.forget(tmp_path / "a")
    assert disk.free_bytes(ratio=1.0, enough=100 * MI) == 60 * MI


def test_what_is_written_counts_once(tmp_path: Path) -> None:
    disk = Small(tmp_path, 92 * MI)  # 8 of 100 are written
    disk.remember(_sparse(tmp_path / "a", 60 * MI, 8 * MI), 60 * MI)
    assert disk.free_bytes(ratio=1.0, enough=100 * MI) == pytest.approx(40 * MI, abs=MI)
    assert disk.free() - disk.free_bytes(ratio=1.0, enough=100 * MI) == pytest.approx(52 * MI, abs=MI)


def test_files_are_not_looked_at_while_there_is_plenty(tmp_path: Path) -> None:
    def never(path: Path) -> int:
        raise AssertionError(path)

    disk = Small(tmp_path, 100 * MI)
    disk.reserve(tmp_path / "a", 10 * MI, ratio=1.0, allocated=never)
    assert disk.free_bytes(ratio=1.0, enough=50 * MI) == 50 * MI
    assert disk.free_bytes(ratio=ANY, enough=7) == 7
    disk.reserve(tmp_path / "large", 80 * MI, ratio=1.0, allocated=never)
    disk.forget(tmp_path / "large")
    assert disk.free_bytes(ratio=1.0, enough=90 * MI) == 90 * MI, "what is gone does not count"
    disk.left = 400 * MI
    disk.join(tmp_path / "p", lambda: (0, 300 * MI))
    disk.join(tmp_path / "q", lambda: (0, 100 * MI))
    found = disk.free_bytes(ratio=1.0, enough=100 * MI, pool=tmp_path / "p")
    assert found == 100 * MI, "enough for this one beside all that others may take"


def test_trash_that_has_the_bytes_is_asked_for_them_whatever_else_is_reserved(tmp_path: Path) -> None:
    """What is reserved is written: only a look at each file shows that the trash is enough."""
    disk = Small(tmp_path, 10 * MI)
    for name, length in (("full", 30 * MI), ("old", 10 * MI), ("trash", 50 * MI)):
        disk.remember(tmp_path / name, length, allocated=lambda _, length=length: length)  # type: ignore[misc]
    disk.discount(tmp_path / "old")
    disk.discount(tmp_path / "trash")

    def restore(length: int) -> None:
        disk.restore(tmp_path / "old", length, ratio=1.0, keep=NO_KEEP, allocated=lambda _: 10 * MI)

    with pytest.raises(DoesNotFitError):
        restore(71 * MI)
    with pytest.raises(ExhaustedError) as failure:
        restore(60 * MI)
    assert not isinstance(failure.value, DoesNotFitError)


def test_what_can_be_had_without_trash_is_checked_for_the_difference_only(tmp_path: Path) -> None:
    disk = Small(tmp_path, 50 * MI)
    for name, length in (("grows", 60 * MI), ("trash", 10 * MI)):
        disk.remember(tmp_path / name, length, allocated=lambda _, length=length: length)  # type: ignore[misc]
    disk.check(tmp_path / "grows", 10**15, now=0, ratio=1.0)
    disk.discount(tmp_path / "trash")
    disk.check(tmp_path / "grows", 120 * MI, now=0, ratio=1.0)
    with pytest.raises(DoesNotFitError, match=r"60Mi .* 61Mi are needed"):
        disk.check(tmp_path / "grows", 121 * MI, now=0, ratio=1.0)


def test_no_more_can_be_allocated_at_once_than_the_disk_has(tmp_path: Path) -> None:
    disk = SharedDisk(tmp_path)
    disk.remember(tmp_path / "trash", MI)
    disk.discount(tmp_path / "trash")
    has = os.statvfs(tmp_path)
    disk.check(tmp_path / "a", 0, now=has.f_bavail * has.f_frsize // 2, ratio=ANY)
    with pytest.raises(DoesNotFitError, match="are needed at once"):
        disk.check(tmp_path / "a", 0, now=has.f_bfree * has.f_frsize * 3 // 2, ratio=ANY)


def test_ratio(tmp_path: Path) -> None:
    disk = Small(tmp_path, 100 * MI)
    disk.reserve(tmp_path / "a", 150 * MI, ratio=2.0)
    assert disk.free_bytes(ratio=2.0, enough=1000 * MI) == 50 * MI
    assert disk.free_bytes(ratio=1.0, enough=1000 * MI) == 0
    disk.reserve(tmp_path / "b", 5000 * MI, ratio=ANY)


def test_paths_on_one_disk_share_an_account(tmp_path: Path) -> None:
    disks = Disks()
    (tmp_path / "a").mkdir()
    assert disks.of(tmp_path) is disks.of(tmp_path / "a")
    assert disks.of(tmp_path) is not Disks().of(tmp_path)
    assert disks.of(Path("/proc")) is not disks.of(tmp_path)


def test_a_disk_is_found_at_its_newest_path(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    disks = Disks()
    disk = disks.of(tmp_path / "a")
    (tmp_path / "a").rmdir()
    with pytest.raises(OSError, match="No such file"):
        disk.size()
    assert disks.of(tmp_path / "b") is disk
    assert disk.size() > 0


def test_what_is_kept_for_others_is_not_promised(tmp_path: Path) -> None:
    disk = Small(tmp_path, 100 * MI)
    assert disk.free_bytes(ratio=1.0, enough=ANY_SIZE, keep=Keep(30 * MI)) == 70 * MI
    assert disk.free_bytes(ratio=2.0, enough=ANY_SIZE, keep=Keep(30 * MI)) == 140 * MI
    with pytest.raises(
        ExhaustedError, match=r"has 70Mi, excluding 30Mi of min free, that is neither used nor reserved"
    ):
        disk.reserve(tmp_path / "a", 71 * MI, ratio=1.0, keep=Keep(30 * MI))
    disk.reserve(tmp_path / "a", 70 * MI, ratio=1.0, keep=Keep(30 * MI))
    assert disk.free_bytes(ratio=1.0, enough=ANY_SIZE, keep=Keep(30 * MI)) == 0
    assert disk.free_bytes(ratio=1.0, enough=ANY_SIZE) == 30 * MI, "another pool may keep less"
    assert disk.free_bytes(ratio=1.0, enough=ANY_SIZE, keep=Keep(200 * MI)) == 0


def test_a_share_is_of_the_whole_disk(tmp_path: Path) -> None:
    assert Keep(percent=15).of(100 * MI) == 15 * MI
    assert Keep(percent=15).of(MI) == 39 * 4096
    disk = Disks().of(tmp_path)
    room = [disk.free_bytes(ratio=1.0, enough=ANY_SIZE, keep=keep) for keep in (Keep(), Keep(percent=0.5))]
    assert room[0] == 0 or room[0] > room[1]
    assert [str(keep) for keep in (Keep(), Keep(10 * MI), Keep(percent=7.5))] == ["0", "10Mi", "7.5%"]


_POOLS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 900).map(lambda size: size and max(size, 1))), min_size=1, max_size=6
)


@given(pools=_POOLS, free=st.integers(0, 1000), larger=st.integers(0, 200))
def test_what_pools_publish_together_is_not_more_than_the_disk_has(
    pools: list[tuple[int, int]], free: int, larger: int
) -> None:
    """Sizes in MiB. A volume takes from the share of its own pool only."""

    def shares(used: list[int], left: int) -> list[int]:
        disk = Small(Path("/"), left * MI)
        for n, (_, size) in enumerate(pools):
            disk.join(Path(f"/{n}"), lambda n=n, size=size: (used[n] * MI, size * MI))  # type: ignore[misc]
        wanted = [max(0, size - used[n]) * MI if size else ANY_SIZE for n, (_, size) in enumerate(pools)]
        return [disk.free_bytes(ratio=1.0, enough=more, pool=Path(f"/{n}")) for n, more in enumerate(wanted)]

    before = [used for used, _ in pools]
    found = shares(before, free)
    assert sum(found) <= free * MI
    if sum((max(0, size - used) * 9 // 8 + 65) if size else 10**9 for used, size in pools) <= free:
        assert found == [max(0, size - used) * MI for used, size in pools]
    if (more := min(larger, found[0] // MI)) > 0:
        after = shares([before[0] + more, *before[1:]], free - more)
        assert after[0] == pytest.approx(found[0] - more * MI, abs=8)
        if pools[0][1] == 0:
            assert after[1:] == pytest.approx(found[1:], abs=8)


def test_a_pool_that_leaves_makes_way(tmp_path: Path) -> None:
    disk = Small(tmp_path, 100 * MI)
    for name in "ab":
        disk.join(tmp_path / name, lambda: (0, 0))
    assert disk.free_bytes(ratio=1.0, enough=ANY_SIZE, pool=tmp_path / "a") == 50 * MI
    assert disk.free_bytes(ratio=ANY, enough=ANY_SIZE, pool=tmp_path / "a") == ANY_SIZE
    disk.leave(tmp_path / "b")
    assert disk.free_bytes(ratio=1.0, enough=ANY_SIZE, pool=tmp_path / "a") == 100 * MI
