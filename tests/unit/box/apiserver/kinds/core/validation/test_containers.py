"""A pod's containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.core.validation.test_pod import pod

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
_V = "spec.volumes[0]"
_TEMPLATE = f"{_V}.ephemeral.volumeClaimTemplate"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(
            pod(container={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
            id="request above limit",
        ),
        pytest.param(
            pod(container={"resources": {"requests": {"storage": "1Gi"}}}),
            'spec.containers[0].resources.requests[storage]: Invalid value: "storage": must be a standard resource for '
            "containers",
            id="storage is no resource of containers",
        ),
        pytest.param(
            pod(container={"ports": [{"containerPort": 1, "name": "UP--"}]}),
            'spec.containers[0].ports[0].name: Invalid value: "UP--": must not contain consecutive hyphens',
            id="port name",
        ),
        pytest.param(
            pod(container={"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
            'spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
            id="value from two places",
        ),
        pytest.param(
            pod(container={"livenessProbe": {}}),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            id="probe of nothing",
        ),
        pytest.param(pod(containers=[]), "spec.containers: Required value", id="no containers"),
    ],
)
def test_a_wrong_pod_is_told_what_is_wrong(faults: Faults, wrong: Obj, said: str) -> None:
    assert said in faults("pods", wrong)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"image": " i"}, '.image: Invalid value: " i": must not have leading', id="space"),
        pytest.param({"imagePullPolicy": "Now"}, '.imagePullPolicy: Unsupported value: "Now"', id="pull policy"),
        pytest.param({"ports": [{"containerPort": 65536}]}, ".ports[0].containerPort: Invalid value: 65536", id="port"),
        pytest.param({"ports": [{"hostPort": 1}]}, ".ports[0].containerPort: Required value", id="no port"),
        pytest.param({"env": [{"name": "a=b"}]}, '.env[0].name: Invalid value: "a=b"', id="variable"),
        pytest.param(
            {"readinessProbe": {"tcpSocket": {"port": 0}}},
            ".readinessProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
            id="probe",
        ),
        pytest.param(
            {"resources": {"requests": {"example.com/gpu": "1"}}},
            ".resources.limits: Required value: Limit must be set for non overcommitable resources",
            id="extended resource",
        ),
    ],
)
def test_a_wrong_container(faults: Faults, change: Obj, said: str) -> None:
    assert any(fault.startswith(f"spec.containers[0]{said}") for fault in faults("pods", pod(container=change)))


def test_names_are_unique_among_all_containers(faults: Faults) -> None:
    found = faults("pods", pod(initContainers=[{"name": "c", "image": "i"}]))
    assert found == ['spec.initContainers[0].name: Duplicate value: "c"']


@pytest.mark.parametrize("number", [-1, -2, 2**31, 2**32 - 1, 2**32])
def test_users_and_groups_are_in_range(faults: Faults, number: int) -> None:
    of_pod = {"runAsUser": number, "runAsGroup": number, "fsGroup": number, "supplementalGroups": [0, number]}
    of_container = {"runAsUser": number, "runAsGroup": number}
    words = ("fsGroup", "runAsUser", "runAsGroup", "supplementalGroups[1]")
    detail = f"Invalid value: {number}: must be between 0 and 2147483647, inclusive"
    wrong = pod(container={"securityContext": of_container}, securityContext=of_pod)
    assert sorted(faults("pods", wrong)) == sorted(
        [
            *(f"spec.securityContext.{word}: {detail}" for word in words),
            *(f"spec.containers[0].securityContext.{word}: {detail}" for word in words[1:3]),
        ]
    )


def test_the_ends_of_the_range_are_users(faults: Faults) -> None:
    for number in (0, 2**31 - 1):
        context = {"runAsUser": number, "runAsGroup": number, "fsGroup": number, "supplementalGroups": [number]}
        assert faults("pods", pod(securityContext=context)) == []


_P, _C = "spec.securityContext", "spec.containers[0].securityContext"


@pytest.mark.parametrize(
    ("spec", "container", "said"),
    [
        (
            {},
            {"seccompProfile": {"type": "Localhost"}},
            f"{_C}.seccompProfile.localhostProfile: Required value: must be",
        ),
        ({}, {"seccompProfile": {"type": "Off"}}, f'{_C}.seccompProfile.type: Unsupported value: "Off"'),
        (
            {"securityContext": {"seccompProfile": {"type": "Unconfined", "localhostProfile": "a"}}},
            {},
            f'{_P}.seccompProfile.localhostProfile: Invalid value: "a": can only be set when seccomp type is Localhost',
        ),
        (
            {},
            {"appArmorProfile": {"type": "Localhost"}},
            f"{_C}.appArmorProfile.localhostProfile: Required value: must",
        ),
        (
            {},
            {"procMount": "All"},
            f'{_C}.procMount: Unsupported value: "All": supported values: "Default", "Unmasked"',
        ),
        ({}, {"procMount": "Unmasked"}, f'{_C}.procMount: Invalid value: "Unmasked": `hostUsers` must be false'),
        ({}, {"allowPrivilegeEscalation": False, "privileged": True}, f"{_C}: Invalid value: "),
        (
            {},
            {"allowPrivilegeEscalation": False, "capabilities": {"add": ["CAP_SYS_ADMIN"]}},
            f"{_C}: Invalid value: ",
        ),
        ({"hostUsers": False, "hostPID": True}, {}, "spec.HostPID: Forbidden: when `hostUsers` is false"),
        (
            {"shareProcessNamespace": True, "hostPID": True},
            {},
            "spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
        ),
        (
            {"securityContext": {"sysctls": [{"name": "A", "value": "1"}]}},
            {},
            f'{_P}.sysctls[0].name: Invalid value: "A": must have at most 253 characters and match regex ^([a-z0-9]',
        ),
        (
            {"securityContext": {"sysctls": [{"name": "a.b", "value": "1"}, {"name": "a.b", "value": "2"}]}},
            {},
            f'{_P}.sysctls[1].name: Duplicate value: "a.b"',
        ),
        (
            {"securityContext": {"supplementalGroupsPolicy": "All"}},
            {},
            f'{_P}.supplementalGroupsPolicy: Unsupported value: "All": supported values: "Merge", "Strict"',
        ),
    ],
)
def test_a_wrong_security_context(faults: Faults, spec: Obj, container: Obj, said: str) -> None:
    found = faults("pods", pod(container={"securityContext": container}, **spec))
    assert [fault[: len(said)] for fault in found] == [said]


def test_a_right_security_context(faults: Faults) -> None:
    context = {
        "seccompProfile": {"type": "RuntimeDefault"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"},
    }
    of_pod = {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}, {"name": "kernel/msg_max", "value": "1"}]}
    container = {**context, "procMount": "Unmasked", "allowPrivilegeEscalation": True, "capabilities": {"add": ["X"]}}
    assert faults("pods", pod(container={"securityContext": container}, securityContext=of_pod, hostUsers=False)) == []
