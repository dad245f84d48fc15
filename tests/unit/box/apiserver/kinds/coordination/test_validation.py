from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x", "namespace": "ns"}} | fields


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("coordination.k8s.io/leases", named(spec={"holderIdentity": "me"}), id="lease"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            "coordination.k8s.io/leases",
            named(spec={"leaseDurationSeconds": 0}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            id="lease of no time",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("coordination.k8s.io/leases", named(spec={"holderIdentity": ""}), id="lease that was released"),
    ],
)
def test_what_real_clients_send_passes(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []
