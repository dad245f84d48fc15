"""A pod that got one volume of two, on real kubelets: the one is given back while the pod has no node, never after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.e2e.machines import Machines
from tests.e2e.machines import pod as ephemeral_pod
from tests.e2e.pods import is_ready, is_there, phase, removed, told, wait_ready
from tests.e2e.processes import until

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
FIRST, SECOND = "halved-disk", "halved-more"


@pytest.fixture
def filled(machines: Machines) -> Iterator[Machines]:
    """Half of node-1 is taken: the pod's volumes fit there one by one, and not together."""
    with removed(machines, "pod/halved", "pod/filler"):
        machines.start("filler", "3Gi", node="node-1")
        machines.wait_ready("filler")
        yield machines


def _halved(machines: Machines, **spec: Any) -> None:
    """A pod with two volumes of 2Gi, the first of which is made on node-1."""
    body = ephemeral_pod("halved", "2Gi", "sleep 100000")
    disk = body["spec"]["volumes"][0]
    body["spec"]["volumes"].append({**disk, "name": "more"})
    body["spec"]["containers"][0]["volumeMounts"].append({"name": "more", "mountPath": "/more"})
    body["spec"].update(spec)
    machines.plane.apply(body)
    for claim in (FIRST, SECOND):
        until(machines.plane, f"{claim} is there", partial(is_there, machines, "pvc", claim))
    _send(machines, FIRST, alone=machines.uid(FIRST))  # as if the pod had no other
    until(machines.plane, "the first is made", lambda: phase(machines, "pvc", FIRST) == "Bound")


def _send(machines: Machines, claim: str, *, alone: str = "") -> None:
    """To node-1, as a scheduler does."""
    body = {"metadata": {"annotations": {names.SELECTED_NODE: "node-1", names.SINGLE_CLAIM: alone or None}}}
    path = f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}"
    assert machines.plane.send("PATCH", path, body).status == 200


def _place(machines: Machines) -> None:
    """The pod gets its node."""
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "halved"}, "target": {"name": "node-1"}}
    assert machines.plane.send("POST", "/api/v1/namespaces/default/pods/halved/binding", body).status == 201


def _finalizers(machines: Machines, claim: str) -> list[str]:
    return list(machines.plane.get("pvc", claim)["metadata"].get("finalizers", []))


def _withdrawn(machines: Machines, claim: str) -> bool:
    return names.RESCHEDULES in machines.plane.get("pvc", claim)["metadata"].get("annotations", {})


def test_while_the_pod_has_no_node_it_is_given_back_and_the_pod_starts_elsewhere(filled: Machines) -> None:
    _halved(filled, schedulingGates=[{"name": "example.com/wait"}])
    uid = filled.uid(FIRST)
    _send(filled, SECOND)
    until(filled.plane, "the second goes back", partial(_withdrawn, filled, SECOND))
    until(filled.plane, "the first is made anew", lambda: uid not in str(filled.plane.get("pvc")))
    filled.plane.kubectl("patch", "pod", "halved", "--type=merge", "-p", '{"spec":{"schedulingGates":null}}')
    assert wait_ready(filled, "halved") == "node-2"
    until(filled.plane, "nothing is left of the first", lambda: filled.left(uid) == [])


def test_when_the_pod_has_its_node_it_stays_and_the_pod_starts_there_when_there_is_room(filled: Machines) -> None:
    _halved(filled, schedulerName="nobody")
    uid = filled.uid(FIRST)
    _place(filled)
    # The controller sends the second: the pod was placed by hand.
    until(filled.plane, "the second goes back", partial(_withdrawn, filled, SECOND))
    claim = filled.plane.get("pvc", FIRST)
    assert (claim["metadata"]["uid"], claim["status"]["phase"]) == (uid, "Bound")
    assert "deletionTimestamp" not in claim["metadata"]
    assert not is_ready(filled, "halved")
    filled.plane.kubectl("delete", "pod", "filler")
    assert wait_ready(filled, "halved") == "node-1"
    assert filled.uid(FIRST) == uid


def test_a_kubelet_rejects_a_claim_that_is_being_deleted(filled: Machines) -> None:
    """What the guard is for: the pod got its node while its claim was on its way out. Old kubelets reject every deleted
    claim, and the pod keeps it from going; newer ones (seen: 1.36) only those that are not protected any more."""
    _halved(filled, schedulerName="nobody")
    path = f"/api/v1/namespaces/default/persistentvolumeclaims/{FIRST}"
    assert filled.plane.send("PATCH", path, {"metadata": {"finalizers": ["example.com/late"]}}).status == 200
    try:
        assert filled.plane.send("DELETE", path).status == 200
        until(filled.plane, "it is not protected", lambda: _finalizers(filled, FIRST) == ["example.com/late"])
        _place(filled)
        until(filled.plane, "the kubelet rejects", partial(told, filled, "halved", f"{FIRST}: PVC is being deleted"))
        assert not is_ready(filled, "halved")
    finally:
        filled.plane.send("PATCH", path, {"metadata": {"finalizers": None}})
