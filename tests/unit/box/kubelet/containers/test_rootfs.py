"""Users, places and options of a container's root."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.pods import SecurityContext
from tonnage_box.kubelet.containers import rootfs


@pytest.mark.parametrize(
    ("pod", "container", "user"),
    [
        (SecurityContext(), SecurityContext(), rootfs.User()),
        (SecurityContext(run_as_user=1), SecurityContext(run_as_user=2), rootfs.User(2)),
        (SecurityContext(run_as_user=1, run_as_group=3), SecurityContext(), rootfs.User(1, 3)),
        (SecurityContext(fs_group=5, supplemental_groups=[5, 6]), SecurityContext(), rootfs.User(0, 0, (5, 6))),
    ],
)
def test_users(pod: SecurityContext, container: SecurityContext, user: rootfs.User) -> None:
    assert rootfs.user(pod, container) == user


def test_users_that_are_rejected() -> None:
    with pytest.raises(InvalidError, match="runAsNonRoot"):
        rootfs.user(SecurityContext(run_as_non_root=True), SecurityContext())
    for number in (-1, -2, 2**31, 2**32 - 1, 2**32):
        for context in (
            SecurityContext(run_as_user=number, run_as_non_root=True),
            SecurityContext(run_as_group=number),
            SecurityContext(fs_group=number),
            SecurityContext(supplemental_groups=[1, number]),
        ):
            with pytest.raises(InvalidError, match="must be between 0 and 2147483647"):
                rootfs.user(context, SecurityContext())


@pytest.mark.parametrize("path", ["/", "//", "/usr", "/proc", "/proc/sys", "relative", "/a/../b", "/x\0"])
def test_places_that_must_stay(path: str) -> None:
    with pytest.raises(InvalidError):
        rootfs.target(path)
