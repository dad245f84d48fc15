"""Users of images."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.rootfs import User
from tonnage_box.kubelet.images.image_user import Accounts, user

ACCOUNTS = Accounts(
    "root:x:0:0:root:/root:/bin/sh\nweb:x:33:44:web:/srv/web:/bin/sh\nshort:x\nbad:x:-1:0:::\nrel:x:9:9::home:\n",
    "staff:x:44:\nlogs:x:55:web,other\nbig:x:99999999999:web\n",
)
WHERE = r'\(pod: "p_ns\(u\)", container: c\)'


def find(image: str, container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None) -> User:
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"securityContext": pod or {}, "containers": [{"name": "c", "securityContext": container or {}}]},
    }
    found = msgspec.convert(raw, Pod)
    return user(found, found.spec.containers[0], image, ACCOUNTS)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("", User(0, 0, (), "/root")),
        ("web", User(33, 44, (55,), "/srv/web")),
        ("33", User(33, 44, (55,), "/srv/web")),
        ("web:logs", User(33, 55, (55,), "/srv/web")),
        ("web:7", User(33, 7, (55,), "/srv/web")),
        ("1234", User(1234, 0, (), "/")),
        ("1234:5", User(1234, 5, (), "/")),
        ("rel", User(9, 9, (), "/")),
    ],
)
def test_the_user_of_the_image(image: str, expected: User) -> None:
    assert find(image) == expected


@pytest.mark.parametrize("image", ["none", "bad", "web:none", "-1", "99999999999", "٣"])
def test_users_that_the_image_does_not_have(image: str) -> None:
    with pytest.raises(
        InvalidError, match=r"unable to find (user|group) .*: no matching entries in (passwd|group) file"
    ):
        find(image)


def test_the_pod_has_the_last_word() -> None:
    assert find("web", {"runAsUser": 33}, {"runAsUser": 5}) == User(33, 44, (55,), "/srv/web")
    assert find("web", {}, {"runAsUser": 0, "runAsGroup": 3}) == User(0, 3, (), "/root")
    assert find("web", {"runAsGroup": 9}, {"fsGroup": 4, "supplementalGroups": [8, 55]}).groups == (8, 55, 4)
    assert find("none:none", {"runAsUser": 5}) == User(5, 0, (), "/")


@pytest.mark.parametrize(
    ("image", "container", "why"),
    [
        ("", {}, f"container has runAsNonRoot and image will run as root {WHERE}"),
        ("0", {}, f"container has runAsNonRoot and image will run as root {WHERE}"),
        ("root", {}, rf"image has non-numeric user \(root\), cannot verify user is non-root {WHERE}"),
        ("web", {}, rf"image has non-numeric user \(web\), cannot verify user is non-root {WHERE}"),
        ("33", {"runAsUser": 0}, f"container's runAsUser breaks non-root policy {WHERE}"),
    ],
)
def test_run_as_non_root(image: str, container: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        find(image, container, {"runAsNonRoot": True})


def test_run_as_non_root_that_holds() -> None:
    assert find("33", {}, {"runAsNonRoot": True}).uid == 33
    assert find("", {"runAsUser": 5}, {"runAsNonRoot": True}).uid == 5
    assert find("", {"runAsNonRoot": False}, {"runAsNonRoot": True}).uid == 0


@pytest.mark.parametrize("image", ["1000", "1000:1000", "", "evil"])
def test_a_number_is_never_a_name(image: str) -> None:
    accounts = Accounts("1000:x:0:0::/root:/bin/sh\nevil:x:7:7:::/\nreal:x:1000:5::/real:/bin/sh\n", "1000:x:0:\n")
    asked = {"securityContext": {} if image[:1] == "1" else {"runAsUser": 1000}}
    raw = {"spec": {"securityContext": {"runAsNonRoot": True}, "containers": [{"name": "c", **asked}]}}
    pod = msgspec.convert(raw, Pod)
    found = user(pod, pod.spec.containers[0], image, accounts)
    assert (found.uid, found.home) == (1000, "/real")
    assert found.gid in (5, 1000)


@pytest.mark.parametrize("number", [-1, -2, 2**31, 2**32 - 1, 2**32])
@pytest.mark.parametrize("word", ["runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"])
def test_numbers_that_mean_something_else_to_the_kernel(number: int, word: str) -> None:
    context: dict[str, Any] = {word: [number] if word == "supplementalGroups" else number}
    for image in ("", "web"):
        with pytest.raises(InvalidError, match=f"{number}: must be between 0 and 2147483647, inclusive"):
            find(image, pod=context)


def test_strict_groups_are_those_of_the_pod_only() -> None:
    of_image = find("web").groups
    assert of_image
    assert find("web", pod={"supplementalGroupsPolicy": "Merge"}).groups == of_image
    assert find("web", pod={"supplementalGroupsPolicy": "Strict", "supplementalGroups": [8]}).groups == (8,)
