from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            "configmaps", named(data={"a/b": "c"}), 'data[a/b]: Invalid value: "a/b": a valid config', id="key"
        ),
        pytest.param(
            "configmaps", named(data={"..": "c"}), "data[..]: Invalid value: \"..\": must not be '..'", id="dots"
        ),
        pytest.param(
            "configmaps",
            named(data={"a": "c"}, binaryData={"a": b64("c")}),
            'data[a]: Invalid value: "a": duplicate of key present in binaryData',
            id="key twice",
        ),
        pytest.param(
            "configmaps",
            named(data={"a": "c" * ((1 << 20) + 1)}),
            ": Too long: may not be more than 1048576",
            id="size",
        ),
        pytest.param("secrets", named(type="kubernetes.io/tls"), "data[tls.crt]: Required value", id="tls without crt"),
        pytest.param(
            "secrets",
            named(type="kubernetes.io/dockerconfigjson", data={".dockerconfigjson": b64("geheim")}),
            'data[.dockerconfigjson]: Invalid value: "<secret contents redacted>"',
            id="no JSON, and no word of it",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert any(fault.startswith(said) for fault in faults(key, wrong))


def test_what_is_immutable_stays(faults: Faults) -> None:
    old = named(data={"a": "b"}, immutable=True)
    assert faults("configmaps", named(data={"a": "c"}), old) == [
        "immutable: Forbidden: field is immutable when `immutable` is set",
        "data: Forbidden: field is immutable when `immutable` is set",
    ]
    assert faults("configmaps", old | {"metadata": {"name": "x", "labels": {"a": "b"}}}, old) == []


def test_a_secret_keeps_its_type(faults: Faults) -> None:
    assert faults("secrets", named(type="other"), named()) == ['type: Invalid value: "other": field is immutable']
