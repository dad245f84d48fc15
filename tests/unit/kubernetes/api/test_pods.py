"""Pods as they come from an API server."""

from __future__ import annotations

from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import claim_name

POD = b"""{"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": "%s"}, "spec": {"volumes": [
    {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    {"name": "files", "emptyDir": {}}, {"name": "inline", "csi": {"driver": "d"}}]}}"""


def test_the_claims_of_a_pod_with_those_of_ephemeral_volumes() -> None:
    pod = PODS.decode(POD % b"Running")
    assert pod.claim_names() == ["claim", "p-scratch"]
    assert [claim_name("p", volume) for volume in pod.spec.volumes] == ["claim", "p-scratch", "", ""]


def test_a_pod_is_terminated_in_its_last_phases() -> None:
    phases = (b"Pending", b"Running", b"Succeeded", b"Failed", b"Unknown")
    assert [PODS.decode(POD % phase).terminated for phase in phases] == [False, False, True, True, False]
