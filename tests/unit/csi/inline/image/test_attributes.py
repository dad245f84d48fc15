"""Attributes of image volumes: every rule, and every rejection by name."""

import re
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import FillRequest, InlinePod, WritableLayer
from tonnage.csi.inline.image import attributes
from tonnage.csi.inline.image.attributes import ImageVolume
from tonnage.storage.images import manifest

HANDLE = f"csi-{'0' * 64}"
DIGEST = f"sha256:{'a' * 64}"


def parse(
    given: dict[str, str], *, read_only: bool = False, handle: str = HANDLE, default: int | None = 1 << 30
) -> ImageVolume:
    request = FillRequest(InlinePod("default", "web", "uid"), given, read_only, handle, Path("/nowhere"))
    return attributes.parse(request, default)


def test_the_image_alone_is_enough() -> None:
    found = parse({"image": "kfox1111/misc:test"})
    assert str(found.image) == "docker.io/kfox1111/misc:test"
    assert found.policy == "IfNotPresent"
    assert not found.is_policy_given
    assert found.platform == manifest.machine()
    assert found.path == ""
    assert found.writable == WritableLayer(1 << 30)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({"image": "a"}, "Always"),
        ({"image": "a:latest"}, "Always"),
        ({"image": "a:1"}, "IfNotPresent"),
        ({"image": f"a:latest@{DIGEST}"}, "IfNotPresent"),
        ({"image": "a", "pullPolicy": "Never"}, "Never"),
        ({"image": "a:1", "pullAlways": "true"}, "Always"),
        ({"image": "a", "pullAlways": "false"}, "IfNotPresent"),
        ({"image": "a", "pullAlways": "true", "pullPolicy": "Always"}, "Always"),
        ({"image": "a", "pullAlways": "false", "pullPolicy": "Never"}, "Never"),
    ],
)
def test_the_pull_policy(given: dict[str, str], policy: str) -> None:
    assert parse(given).policy == policy


def test_what_is_writable() -> None:
    found = parse({"image": "a", "size": "64Mi", "pool": "fast", "fsType": "xfs"})
    assert found.writable == WritableLayer(64 << 20, "fast", {"fsType": "xfs"})
    assert parse({"image": "a"}, read_only=True).writable is None
    assert parse({"image": "a", "path": "/usr//./share/"}, read_only=True).path == "usr/share"


def test_a_persistent_volume_is_named_by_its_handle_and_read_only() -> None:
    found = parse({}, handle="registry.example:5000/models:7")
    assert str(found.image) == "registry.example:5000/models:7"
    assert found.writable is None
    assert str(parse({"image": "other:1"}, handle="any").image) == "docker.io/library/other:1"


@pytest.mark.parametrize("handle", ["", HANDLE])
def test_an_image_is_required(handle: str) -> None:
    with pytest.raises(InvalidError, match="attribute 'image' is missing"):
        parse({}, handle=handle)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("image", "a/UPPER", "invalid reference format"),
        ("image", "a" * 10_000, "longer than 255"),
        ("image", f"a@{DIGEST[:-1]}", "digest"),
        ("pullPolicy", "always", "not one of Always, IfNotPresent, Never"),
        ("pullAlways", "yes", "not one of true, false"),
        ("size", "much", "quantit"),
        ("size", "1" * 10_000, "quantit"),
        ("pullPolicy", "A" * 10_000, "not one of"),
        ("pullAlways", "t" * 10_000, "not one of"),
        ("platform", "linux/" + "a" * 10_000, "want OS/ARCHITECTURE"),
        ("size", "0", "more than 0 bytes"),
        ("size", "-1Gi", "more than 0 bytes"),
        ("pool", "", "no name of a pool"),
        ("pool", "p" * 10_000, "no name of a pool"),
        ("path", "a/../b", "without '..'"),
        ("path", "a\0b", "without '..'"),
        ("path", "x/" * 5000, "a folder of the image"),
        ("platform", "linux", "want OS/ARCHITECTURE"),
        ("platform", "linux/amd64/v1/x", "want OS/ARCHITECTURE"),
    ],
)
def test_bad_values_are_rejected_with_their_key(key: str, value: str, why: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(why)) as rejection:
        parse({"image": "a", key: value})
    assert str(rejection.value).startswith(f"attribute '{key}': ")
    assert len(str(rejection.value)) < 500
    with pytest.raises(InvalidError, match=re.escape(why)):  # the framework names the key
        attributes.RULES[key].check(value)


def test_contradictions_are_rejected() -> None:
    with pytest.raises(InvalidError, match="contradict each other: remove 'pullAlways'"):
        parse({"image": "a", "pullPolicy": "Never", "pullAlways": "true"})
    with pytest.raises(InvalidError, match="contradict each other"):
        parse({"image": "a", "pullPolicy": "Always", "pullAlways": "false"})


@pytest.mark.parametrize("key", ["size", "pool", "fsType"])
def test_nothing_of_a_writable_layer_is_taken_for_a_read_only_volume(key: str) -> None:
    with pytest.raises(InvalidError, match=f"attribute '{key}': the volume is read-only"):
        parse({"image": "a", key: "1Gi"}, read_only=True)


def test_a_size_is_required_where_there_is_no_default() -> None:
    with pytest.raises(InvalidError, match="attribute 'size' is missing"):
        parse({"image": "a"}, default=None)
    assert parse({"image": "a"}, default=None, read_only=True).writable is None
