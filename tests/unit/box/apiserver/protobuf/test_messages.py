"""Messages: the table of numbers, and what is particular about single fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage_box.apiserver.protobuf import messages
from tonnage_box.apiserver.protobuf.messages import Input, message
from tonnage_box.apiserver.protobuf.wire import WireError, delimited, varint
from tonnage_box.apiserver.schema import schemas


def read(name: str, data: bytes) -> dict[str, Any]:
    return message(name).read(Input(data, msgspec.json.decode), 0, len(data))


CUSTOM = ("snapshot.v1.", "groupsnapshot.v1.", "apiextensions.v1.", "tonnage.v1.", "cert-manager.v1.")
"""Of custom resources, which have no protobuf encoding in Kubernetes, and their definitions, which come as files."""


def test_every_field_has_a_number() -> None:
    for name, struct in schemas.all_structs().items():
        assert messages.is_encoded(name) == (not name.startswith(CUSTOM)), name
        if name.startswith(CUSTOM):
            continue
        made = message(name)
        assert struct.fields.keys() - made.writers.keys() <= messages.UNNUMBERED, name
        tags = [(writer.prefix, writer.tag) for writer in made.writers.values()]
        assert len(set(tags)) == len(tags), name


def test_no_struct_contains_itself() -> None:
    """Else the depth of a body would be without limit."""

    def visit(name: str, above: frozenset[str]) -> None:
        assert name not in above
        for field in schemas.struct(name).fields.values():
            kind = field.type
            while kind.item is not None:
                kind = kind.item
            if kind.struct:
                visit(kind.struct, above | {name})

    for name in schemas.all_structs():
        visit(name, frozenset())


def test_fields_of_inline_messages_are_shown_one_level_higher() -> None:
    volume = {"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}
    data = message("core.v1.Volume").write(volume)
    limit = delimited(2, delimited(1, b"1Gi"))
    assert data == delimited(1, b"v") + delimited(2, delimited(2, limit))
    assert read("core.v1.Volume", bytes(data)) == volume


def test_a_message_that_comes_twice_is_merged() -> None:
    twice = delimited(1, delimited(1, b"a")) + delimited(1, delimited(3, b"default"))
    assert read("core.v1.Pod", twice) == {"metadata": {"name": "a", "namespace": "default"}}


def test_numbers_may_be_packed() -> None:
    groups = varint(4 << 3) + varint(7) + delimited(4, varint(8) + varint(2**64 - 1))
    assert read("core.v1.PodSecurityContext", groups) == {"supplementalGroups": [7, 8, -1]}


def test_zeros_are_kept_where_json_has_them() -> None:
    spec = varint(4 << 3) + b"\0" + varint(11 << 3) + b"\0"  # a pointer, and hostNetwork
    assert read("core.v1.PodSpec", spec) == {"terminationGracePeriodSeconds": 0}
    assert read("apps.v1.StatefulSetStatus", varint(2 << 3) + b"\0") == {"replicas": 0}


def test_a_time_that_is_not_set_is_left_out() -> None:
    assert read("meta.v1.ObjectMeta", delimited(1, b"a") + delimited(8, b"")) == {"name": "a"}


def test_fields_of_a_newer_kubernetes_are_ignored() -> None:
    assert read("meta.v1.ObjectMeta", delimited(1000, b"x") + delimited(1, b"a")) == {"name": "a"}


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("meta.v1.ObjectMeta", b"\x08\x01", "name has wire type 0, not 2"),
        ("meta.v1.ObjectMeta", delimited(11, b"\x10\x01"), "a map's entry has wire type 0"),
        ("meta.v1.ObjectMeta", delimited(8, b"\x08" + varint(2**62)), "beyond the year 9999"),
        ("core.v1.PodSpec", delimited(2, b"") * 100_001, "more than 100000 fields"),
        ("core.v1.PodSecurityContext", delimited(4, b"\x01" * 100_001), "more than 100000 fields"),
        ("meta.v1.ObjectMeta", delimited(8, b"\x08\x01" * 100_001), "more than 100000 fields"),
        ("authentication.v1.UserInfo", delimited(4, delimited(2, b"\x0a\x00" * 100_001)), "more than 100000 fields"),
    ],
)
def test_wrong_values_are_rejected(name: str, data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        read(name, data)


def test_text_that_is_not_utf_8_is_rejected() -> None:
    with pytest.raises(UnicodeDecodeError):
        read("meta.v1.ObjectMeta", delimited(1, b"\xff"))
