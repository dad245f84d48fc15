"""SELinux contexts in mount options and in mountinfo."""

from __future__ import annotations

import pytest

from tonnage.host import selinux
from tonnage.host.mount import parse

FILES = "system_u:object_r:container_file_t"
LINE = "31 1 7:0 / /mnt rw,nodev - ext4 /dev/loop0 "


@pytest.mark.parametrize(
    ("options", "context"),
    [
        (["noatime", f'context="{FILES}:s0:c1,c2"'], f"{FILES}:s0:c1,c2"),
        ([f"context={FILES}:s0"], f"{FILES}:s0"),
        (["noatime", "rw"], ""),
        ([], ""),
    ],
)
def test_the_context_of_mount_options(options: list[str], context: str) -> None:
    assert selinux.context_of(options) == context
    assert not context or selinux.context_of([selinux.option_of(context)]) == context


@pytest.mark.parametrize(
    ("shown", "context"),
    [
        (f'rw,context="{FILES}:s0:c1,c2",errors=remount-ro', f"{FILES}:s0:c1,c2"),
        (f"rw,context={FILES}:s0,discard", f"{FILES}:s0"),
        (f"rw,rootcontext={FILES}:s0", ""),
        ("rw,seclabel,discard", ""),
        ("", ""),
    ],
)
def test_the_context_that_the_kernel_shows(shown: str, context: str) -> None:
    (entry,) = parse(LINE + shown)
    assert entry.context == context


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s0:c1,c2", "s0:c2,c1", True),
        ("s0:c1,c2,c3", "s0:c1.c3", True),
        ("s0:c0,c1,c2,c5", "s0:c5,c0.c2", True),
        ("s0-s0", "s0", True),
        ("s0:c1,c2", "s0:c1,c3", False),
        ("s0", "s0:c1", False),
        ("s0:c1", "s1:c1", False),
        ("s0-s0:c1", "s0", False),
        ("s0:secret", "s0:public", False),
    ],
)
def test_levels_that_are_the_same_to_the_kernel(one: str, other: str, is_same: bool) -> None:
    assert selinux.is_same(f"{FILES}:{one}", f"{FILES}:{other}") is is_same
    assert not selinux.is_same(f"{FILES}:{one}", f"system_u:object_r:etc_t:{other}")


def test_a_file_system_with_a_label_for_each_file_has_no_context() -> None:
    assert selinux.is_same("", "")
    assert not selinux.is_same("", f"{FILES}:s0")
