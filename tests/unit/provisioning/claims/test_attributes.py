"""What is still to be done for a change of a VolumeAttributesClass: each state of claim and PV."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.storage import VolumeAttributesClass
from tonnage.provisioning.claims.attributes import (
    FAILED,
    MODIFYING,
    Cancel,
    ClassMissing,
    Finish,
    Modify,
    ModifyAction,
    ModifyFacts,
    NoAction,
    ReapplyClass,
    RejectChange,
    cancelled,
    changing,
    ended,
    goal_of,
    modify_secret,
    step,
)

A = msgspec.convert({"metadata": {"name": "a", "uid": "1"}, "driverName": "d"}, VolumeAttributesClass)
OTHER = {"type": "Resizing", "status": "True"}


def _claim(wanted: str | None = None, has: str | None = None, change: str = "", **more: Any) -> PersistentVolumeClaim:
    """change: "state target"."""
    status: dict[str, Any] = {"phase": "Bound", "currentVolumeAttributesClassName": has}
    if change:
        state, _, target = change.partition(" ")
        status["modifyVolumeStatus"] = {"status": state, "targetVolumeAttributesClassName": target}
    status["conditions"] = [{"type": t, "status": "True"} for t in more.pop("conditions", ())]
    meta = {"name": "c", "uid": "u", **more.pop("metadata", {})}
    spec = {"volumeName": "v", "volumeAttributesClassName": wanted}
    body = {"metadata": meta, "spec": spec, "status": {**status, **more}}
    return msgspec.convert(body, PersistentVolumeClaim)


def _volume(has: str | None = None, uid: str = "u", **spec: Any) -> PersistentVolume:
    ref = {"namespace": "default", "name": "c", "uid": uid}
    return msgspec.convert(
        {"metadata": {"name": "v"}, "spec": {"claimRef": ref, "volumeAttributesClassName": has, **spec}},
        PersistentVolume,
    )


@pytest.mark.parametrize(
    ("claim", "volume", "more", "action"),
    [
        pytest.param(_claim(), _volume(), {}, NoAction(), id="no class"),
        pytest.param(_claim("a", "a"), _volume("a"), {}, NoAction(), id="done"),
        pytest.param(_claim("a", "a"), _volume("a"), {"is_asserted": False}, ReapplyClass(A), id="done, before a restart"),
        pytest.param(_claim("a"), _volume(), {}, Modify(A, is_recorded=False), id="first class"),
        pytest.param(_claim("a", "b"), _volume("b"), {}, Modify(A, is_recorded=False), id="another class"),
        pytest.param(_claim("a", "b", "InProgress a"), _volume("b"), {}, Modify(A, is_recorded=True), id="begun"),
        pytest.param(_claim("a", "b", "Infeasible a"), _volume("b"), {}, Modify(A, is_recorded=False), id="tried again"),
        pytest.param(_claim("a", "b"), _volume("a"), {}, Modify(A, is_recorded=False), id="killed before the claim"),
        pytest.param(_claim("a", "a"), _volume("b"), {}, Modify(A, is_recorded=False), id="killed, then back again"),
        pytest.param(_claim(None, None), _volume("a"), {}, Finish("a"), id="killed, then back to none"),
        pytest.param(_claim("a"), _volume(), {"attributes": None}, ClassMissing("a"), id="no such class"),
        pytest.param(_claim("a"), _volume(), {"fault": "of another"}, RejectChange("a", "of another"), id="rejected"),
        pytest.param(_claim(None, None, "Infeasible a"), _volume(), {}, Cancel(), id="taken back"),
        pytest.param(_claim("", None, "Pending a"), _volume(), {}, Cancel(), id="taken back by an empty name"),
        pytest.param(_claim("a", "a", "Infeasible b"), _volume("a"), {}, Cancel(), id="back to what it has"),
        pytest.param(
            _claim(None, None, "InProgress a", conditions=[FAILED]), _volume(), {}, Modify(A, is_recorded=True),
            id="back to none, but it may have had an effect",
        ),
        pytest.param(_claim("a", metadata={"deletionTimestamp": "x"}), _volume(), {}, NoAction(), id="being deleted"),
        pytest.param(_claim("a", phase="Pending"), _volume(), {}, NoAction(), id="not bound"),
        pytest.param(_claim("a"), _volume(uid="other"), {}, NoAction(), id="volume of another claim"),
    ],
)  # fmt: skip
def test_each_state_has_one_next_step(
    claim: PersistentVolumeClaim, volume: PersistentVolume, more: dict[str, Any], action: ModifyAction
) -> None:
    assert step(ModifyFacts(claim, volume, **{"goal": goal_of(claim), "attributes": A, **more})) == action


@pytest.mark.parametrize(
    ("claim", "pending", "goal"),
    [
        (_claim("a", "b"), "", "a"),
        (_claim("a", "b"), "c", "c"),
        (_claim("a", "b", "InProgress c"), "", "c"),
        (_claim("a", "b", "InProgress c", conditions=[FAILED]), "", "a"),
        (_claim("a", "b", "Infeasible c"), "", "a"),
        (_claim(None, None, "InProgress c", conditions=[FAILED]), "", "c"),
    ],
)
def test_a_change_without_an_outcome_comes_first(claim: PersistentVolumeClaim, pending: str, goal: str) -> None:
    assert goal_of(claim, pending) == goal


def test_a_status_is_written_once_and_leaves_the_conditions_of_others() -> None:
    claim = _claim("a", "b", conditions=["Resizing"])
    body = changing(claim, "Infeasible", "a", "failed", error=("InvalidArgument", "no"), now=0.0)
    assert body is not None
    assert [c["type"] for c in body["status"]["conditions"]] == ["Resizing", MODIFYING, FAILED]
    status = {"phase": "Bound", "currentVolumeAttributesClassName": "b", **body["status"]}
    now = msgspec.convert({"metadata": {"name": "c", "uid": "u"}, "status": status}, PersistentVolumeClaim)
    assert changing(now, "Infeasible", "a", "failed", error=("InvalidArgument", "no"), now=99.0) is None
    assert ended(now, "a") == {
        "status": {"currentVolumeAttributesClassName": "a", "modifyVolumeStatus": None, "conditions": [OTHER]}
    }
    assert cancelled(now) == {"status": {"modifyVolumeStatus": None, "conditions": [OTHER]}}
    assert ended(_claim("a", "a"), "a") is None
    assert cancelled(_claim("a", "a")) is None


def test_the_secret_of_a_change_is_named_by_annotations_else_that_of_growth() -> None:
    prefix = "volume.kubernetes.io/controller-modify-secret-"
    notes = {f"{prefix}name": "n", f"{prefix}namespace": "s"}
    csi = {"driver": "d", "volumeHandle": "h", "controllerExpandSecretRef": {"name": "e", "namespace": "t"}}
    both = msgspec.convert({"metadata": {"annotations": notes}, "spec": {"csi": csi}}, PersistentVolume)
    assert modify_secret(both) == ("n", "s")
    assert modify_secret(_volume(csi=csi)) == ("e", "t")
    assert modify_secret(_volume()) is None
