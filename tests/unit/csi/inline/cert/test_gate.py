"""What a pod waits for before its certificate is requested."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.gate import closed_gate, parse_gates
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.pods import Pod


def pod(**status: Any) -> Pod:
    meta = {"name": "p", "annotations": {"team": "blue", "empty": ""}}
    return convert({"metadata": meta, "status": status}, Pod)


@pytest.mark.parametrize(
    ("text", "status", "closed"),
    [
        ("", {}, ""),
        ("pod-ip", {}, "pod-ip"),
        ("pod-ip", {"podIPs": [{"ip": "10.0.0.7"}]}, ""),
        ("condition:Initialized", {}, "condition:Initialized=True"),
        ("condition:Initialized", {"conditions": [{"type": "Initialized", "status": "False"}]}, "condition:Initialized=True"),
        ("condition:Initialized=False", {"conditions": [{"type": "Initialized", "status": "False"}]}, ""),
        ("annotation:team", {}, ""),
        ("annotation:empty", {}, ""),
        ("annotation:team=red", {}, "annotation:team=red"),
        ("annotation:none", {}, "annotation:none"),
        ("annotation:team, pod-ip", {}, "pod-ip"),
    ],
)  # fmt: skip
def test_gates(text: str, status: dict[str, Any], closed: str) -> None:
    assert closed_gate(parse_gates(text), pod(**status)) == closed


@pytest.mark.parametrize("text", ["ip", "pod-ip:x", "condition:", "condition", "annotation:=x", ",", "x" * 10000])
def test_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match="want pod-ip, condition:TYPE"):
        parse_gates(text)
