"""Calls and answers of FlexVolume: what the kubelet passes, and whatever else may be there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tonnage.base.errors import InvalidError
from tonnage.node.flexvolume.protocol import encode_answer, parse_options, parse_request, parse_target

KUBELET = Path("/var/lib/kubelet")
AT = "/var/lib/kubelet/pods/uid-1/volumes/tonnage.dev~local/data"
OPTIONS = {
    "kubernetes.io/fsType": "ext4",
    "kubernetes.io/readwrite": "rw",
    "kubernetes.io/pvOrVolumeName": "data",
    "kubernetes.io/pod.name": "p",
    "kubernetes.io/pod.namespace": "default",
    "kubernetes.io/pod.uid": "uid-1",
    "kubernetes.io/serviceAccount.name": "default",
    "kubernetes.io/mounterArgs.FsGroup": "2000",
    "kubernetes.io/secret/key": "aHVudGVyMg==",
}


def request(*parts: str) -> bytes:
    return "".join(f"{part}\0" for part in parts).encode()


def mount(**options: str) -> Any:
    return parse_request(request("/x", "mount", AT, json.dumps({**OPTIONS, **options})), KUBELET)


def test_a_mount_has_its_target_and_options_and_shows_no_secret() -> None:
    call = mount(size="1Gi", pool="fast", erase="zero")
    assert (call.target.driver, call.target.pod, call.target.volume) == ("tonnage.dev/local", "uid-1", "data")
    options = parse_options(call)
    assert (options.size, options.fs_type, options.read_only) == (1 << 30, "ext4", False)
    assert options.parameters == {"pool": "fast", "erase": "zero"}
    assert "hunter" not in repr(call)
    assert "aHVud" not in repr(call) + repr(options)


def test_options_of_the_other_drivers() -> None:
    assert parse_options(mount(sizeBytes="1073741824")).size == 1 << 30
    local = parse_options(mount(path="/../../etc", directory="x", name="y"))
    assert (local.size, local.parameters) == (0, {}), "a path of a manifest is not followed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "1Gi", "sizeBytes": "1"}, "one of size and sizeBytes"),
        ({"size": "-1"}, "want more than 0"),
        ({"size": "much"}, "much"),
        ({"kubernetes.io/pod.uid": "uid-2"}, "of another pod"),
        ({"kubernetes.io/pvOrVolumeName": "other"}, "of another pod or volume"),
        ({"kubernetes.io/pod.name": ""}, "kubernetes.io/pod.name is missing"),
        ({"kubernetes.io/readwrite": "x"}, "want rw or ro"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        parse_options(mount(**options))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":1}', "null"])
def test_options_that_are_no_json_show_nothing_of_them(text: str) -> None:
    call = parse_request(request("/x", "mount", AT, text), KUBELET)
    with pytest.raises(InvalidError, match=r"^the options are no JSON object of strings$"):
        parse_options(call)


@pytest.mark.parametrize(
    "folder",
    [
        "/etc",
        "/var/lib/kubelet/pods/u/volumes/tonnage.dev~local/../../../../x",
        "/var/lib/kubelet/pods/u/volumes/tonnage.dev~local",
        "/var/lib/kubelet/pods/u/volumes/tonnage.dev~local/a/b",
        "/var/lib/kubelet/pods/u/plugins/tonnage.dev~local/a",
        "/var/lib/kubelet/pods//volumes/tonnage.dev~local/a",
        "/var/lib/kubelet/pods/u/volumes/local/a",
        "pods/u/volumes/tonnage.dev~local/a",
    ],
)
def test_a_folder_that_is_no_pods_volume_is_rejected(folder: str) -> None:
    with pytest.raises(InvalidError, match="want /var/lib/kubelet/pods/<uid>/volumes/"):
        parse_target(folder, KUBELET)


@given(some.binary(max_size=200))
def test_any_bytes_are_a_call_or_rejected(data: bytes) -> None:
    for text in (data, b"/x\0mount\0" + AT.encode() + b"\0" + data + b"\0", b"/x\0unmount\0" + data + b"\0"):
        try:
            call = parse_request(text, KUBELET)
            parse_options(call)
        except InvalidError:
            continue
        raise AssertionError("random options never name the pod of the folder")


@given(some.text())
def test_an_answer_is_one_line_of_json(text: str) -> None:
    answer = encode_answer(text)
    assert answer.endswith(b"\n")
    assert answer.count(b"\n") == 1
    assert len(answer) < 65536
    assert json.loads(answer)["status"] == ("Failure" if text else "Success")
