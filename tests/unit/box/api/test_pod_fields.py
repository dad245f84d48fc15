"""Each field of the API's pods is honored, and the table says where, or has an answer in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tonnage
from tonnage.kubernetes.api import pods
from tonnage_box.api import pod_fields
from tonnage_box.api.pod_security import POD as NAMESPACES
from tonnage_box.api.pod_security import FieldRule
from tonnage_box.apiserver.schema import schemas

Obj = dict[str, Any]
SOURCE = Path(tonnage.__file__).parent
PAGE = Path(__file__).resolve().parents[4] / "docs" / "limitations.md"
SCHEDULER, KUBELET, ADMISSION = "scheduler/framework", "tonnage_box/kubelet", "tonnage_box/apiserver/admission"
HANDLER, ENV, INFO = f"{KUBELET}/probes/handler.py", f"{KUBELET}/containers/env.py", f"{SCHEDULER}/pod_info.py"
NAMES, STATE = f"{KUBELET}/pods/network_files.py", f"{KUBELET}/probes/probe_state.py"
BWRAP, RUNS = f"{KUBELET}/containers/bubblewrap.py", f"{KUBELET}/containers/containers.py"
WORKER, STATUS, STDIO = (f"{KUBELET}/{name}.py" for name in ("pods/worker", "pods/status", "containers/stdio"))
ACCOUNT, PRIORITY = f"{ADMISSION}/account.py", f"{ADMISSION}/priority.py"
OWN_TESTS = {"SecurityContext", "PodSecurityContext", "Volume", "LabelSelector"}
"""Structs whose fields other tests look at: test_pod_security, kubelet/volumes, api/test_selectors."""
_CONTAINER = {
    ENV: "args command env envFrom",
    BWRAP: "lifecycle securityContext terminationMessagePath terminationMessagePolicy volumeDevices volumeMounts workingDir",
    RUNS: "name restartPolicy",
    STATE: "livenessProbe readinessProbe startupProbe",
    STDIO: "stdin tty",
    f"{KUBELET}/streaming/attach.py": "stdinOnce",
}
HONORED: dict[str, dict[str, str]] = {
    "PodSpec": {
        ACCOUNT: "automountServiceAccountToken serviceAccount serviceAccountName",
        INFO: "affinity nodeSelector overhead tolerations topologySpreadConstraints",
        NAMES: "dnsConfig hostAliases hostname hostnameOverride setHostnameAsFQDN subdomain",
        PRIORITY: "preemptionPolicy priority priorityClassName",
        RUNS: "containers ephemeralContainers initContainers restartPolicy",
        STATUS: "readinessGates",
        WORKER: "activeDeadlineSeconds terminationGracePeriodSeconds",
        BWRAP: "securityContext",
        f"{KUBELET}/kubelet.py": "nodeName",
        f"{KUBELET}/volumes/volumes.py": "volumes",
        "scheduler/scheduler.py": "schedulerName schedulingGates",
    },
    "Affinity": {INFO: "nodeAffinity podAffinity podAntiAffinity"},
    "NodeAffinity": {
        INFO: "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution"
    },
    "PodAffinity": {
        INFO: "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution"
    },
    "PodAntiAffinity": {
        INFO: "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution"
    },
    "PreferredSchedulingTerm": {INFO: "preference weight"},
    "WeightedPodAffinityTerm": {INFO: "podAffinityTerm weight"},
    "PodAffinityTerm": {INFO: "labelSelector matchLabelKeys mismatchLabelKeys namespaces topologyKey"},
    "TopologySpreadConstraint": {
        INFO: "labelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
        "whenUnsatisfiable"
    },
    "NodeSelector": {"kubernetes/api/selectors.py": "nodeSelectorTerms"},
    "NodeSelectorTerm": {"kubernetes/api/selectors.py": "matchExpressions matchFields"},
    "NodeSelectorRequirement": {"kubernetes/api/selectors.py": "key operator values"},
    "Toleration": {"kubernetes/api/taints.py": "effect key operator value"},
    "Container": _CONTAINER,
    "EphemeralContainer": _CONTAINER,
    "EnvVar": {ENV: "name value valueFrom"},
    "EnvVarSource": {ENV: "configMapKeyRef fieldRef resourceFieldRef secretKeyRef"},
    "EnvFromSource": {ENV: "configMapRef prefix secretRef"},
    "ConfigMapKeySelector": {ENV: "key name optional"},
    "SecretKeySelector": {ENV: "key name optional"},
    "ConfigMapEnvSource": {ENV: "name optional"},
    "SecretEnvSource": {ENV: "name optional"},
    "ObjectFieldSelector": {ENV: "fieldPath", "tonnage_box/apiserver/kinds/core/pod_defaults.py": "apiVersion"},
    "ResourceFieldSelector": {f"{KUBELET}/volumes/sources.py": "containerName divisor resource"},
    "Lifecycle": {RUNS: "postStart preStop", BWRAP: "stopSignal"},
    "LifecycleHandler": {HANDLER: "exec httpGet sleep tcpSocket"},
    "ExecAction": {HANDLER: "command"},
    "HTTPGetAction": {HANDLER: "host httpHeaders path port scheme"},
    "HTTPHeader": {HANDLER: "name value"},
    "TCPSocketAction": {HANDLER: "host port"},
    "SleepAction": {HANDLER: "seconds"},
    "Probe": {
        HANDLER: "exec httpGet tcpSocket",
        STATE: "failureThreshold initialDelaySeconds periodSeconds successThreshold terminationGracePeriodSeconds "
        "timeoutSeconds",
    },
    "ContainerPort": {INFO: "hostIP hostPort protocol", HANDLER: "containerPort name"},
    "ResourceRequirements": {
        INFO: "requests",
        f"{KUBELET}/pods/eviction.py": "limits",
        "tonnage_box/api/pod_fields.py": "claims",
    },
    "VolumeDevice": {BWRAP: "devicePath name"},
    "VolumeMount": {BWRAP: "mountPath name readOnly subPath subPathExpr"},
    "PodDNSConfig": {NAMES: "nameservers options searches"},
    "PodDNSConfigOption": {NAMES: "name value"},
    "HostAlias": {NAMES: "hostnames ip"},
    "PodReadinessGate": {STATUS: "conditionType"},
    "PodSchedulingGate": {"scheduler/scheduler.py": "name"},
    "LocalObjectReference": {ACCOUNT: "name"},
}
"""Where in the tree each field has its effect: struct -> module -> fields."""
ANSWERED: dict[str, tuple[FieldRule, ...]] = {
    "PodSpec": (*NAMESPACES, *pod_fields.POD),
    "Container": pod_fields.CONTAINER,
    "EphemeralContainer": pod_fields.CONTAINER,
    "VolumeMount": pod_fields.NESTED["of a mount"],
    "PodAffinityTerm": pod_fields.NESTED["of a pod affinity term"],
    "Probe": pod_fields.NESTED["of a probe"],
    "Toleration": pod_fields.NESTED["of a toleration"],
    "EnvVarSource": pod_fields.NESTED["of a variable"],
}
WHOLLY_ANSWERED = {
    "ContainerResizePolicy": "resizePolicy",
    "ContainerRestartRule": "restartPolicyRules",
    "ContainerRestartRuleOnExitCodes": "restartPolicyRules",
    "FileKeySelector": "fileKeyRef",
    "GRPCAction": "grpc",
    "PodOS": "os",
    "PodResourceClaim": "resourceClaims",
    "ResourceClaim": "resources",
}
"""Structs of a field that has an answer as a whole."""


def _reached(name: str, found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Every struct in one, with its fields."""
    if name not in found and name not in OWN_TESTS:
        fields = schemas.struct(f"core.v1.{name}").fields
        found[name] = list(fields)
        for field in fields.values():
            kind = field.type
            while kind.item is not None:
                kind = kind.item
            if kind.struct:
                _reached(kind.struct.rpartition(".")[2], found)
    return found


def test_each_field_is_honored_or_has_an_answer() -> None:
    reached = _reached("PodSpec", {})
    assert sorted(reached) == sorted({*HONORED, *WHOLLY_ANSWERED})
    for struct in HONORED:
        known = [field for fields in HONORED[struct].values() for field in fields.split()]
        known += [rule.name for rule in ANSWERED.get(struct, ())]
        extra = ["targetContainerName"] if struct == "Container" else []  # a rule of ephemeral containers only
        assert sorted(known) == sorted([*reached[struct], *extra]), struct
    every = {rule.name for rules in ANSWERED.values() for rule in rules}
    assert set(WHOLLY_ANSWERED.values()) <= every


def _words(field: str) -> Iterator[str]:
    yield field
    yield re.sub("(?<=[a-z])([A-Z])", lambda found: f"_{found[1]}", field).lower()


def test_what_is_honored_is_used_where_the_table_says() -> None:
    for struct, places in HONORED.items():
        for module, fields in places.items():
            text = (SOURCE.parent / module if module.startswith("tonnage_box/") else SOURCE / module).read_text()
            for field in fields.split():
                assert any(re.search(rf"\b{word}\b", text) for word in _words(field)), (struct, field, module)


def test_the_kubelet_sees_each_field_that_it_must_look_at() -> None:
    for struct, rules in ((pods.PodSpec, pod_fields.POD), (pods.Container, pod_fields.CONTAINER)):
        known = {field.encode_name for field in msgspec.structs.fields(struct)}
        assert {rule.name for rule in rules if rule.is_checked} <= known


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    section = PAGE.read_text().split("## Fields of pods in the box\n")[1].split("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in section.splitlines() if "|" in line]
    rules = {"spec": pod_fields.POD, "of a container": pod_fields.CONTAINER, **pod_fields.NESTED}
    expected = [(f"`{rule.name}`", where, rule.effect) for where, of in rules.items() for rule in of]
    assert rows[2:] == sorted(expected, key=lambda row: (row[0].lower(), row[1]))


@pytest.mark.parametrize(
    ("spec", "container", "said"),
    [
        ({}, {"restartPolicyRules": [{"action": "Restart"}]}, "restartPolicyRules: these rules are not applied"),
        ({}, {"resources": {"claims": [{"name": "gpu"}]}}, "resources: there are no devices to claim"),
        ({"os": {"name": "windows"}}, {}, "spec.os: Failed to admit pod as the OS field doesn't match node OS"),
    ],
)
def test_what_the_box_cannot_do_is_rejected_by_name(spec: Obj, container: Obj, said: str) -> None:
    own = {"name": "main", **container}
    found = pod_fields.rejection({**spec, "containers": [own]}, own)
    assert found is not None
    assert found.text.startswith(said)


def test_what_has_no_effect_is_named_with_its_path() -> None:
    spec = {
        "dnsPolicy": "ClusterFirstWithHostNet",
        "imagePullSecrets": [{"name": "s"}],
        "os": {"name": "linux"},
        "containers": [{"name": "main", "resizePolicy": [{"resourceName": "cpu"}]}],
    }
    found = [warning.partition(":")[0] for warning in pod_fields.warnings(spec, "spec.template.spec")]
    names = ["dnsPolicy", "imagePullSecrets", "containers[0].resizePolicy"]
    assert found == [f"spec.template.spec.{name}" for name in names]
    assert pod_fields.pod_rejection(spec) is None


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"os": {"name": "windows"}}, "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
        (
            {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.msgmax" not allowlisted',
        ),
        (
            {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}},
            "SysctlForbidden",
            'forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled',
        ),
        (
            {"initContainers": [{"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]},
            "AppArmor",
            "Cannot enforce AppArmor: the box sets no profiles",
        ),
    ],
)
def test_what_a_kubelet_does_not_let_begin(spec: Obj, reason: str, text: str) -> None:
    found = pod_fields.pod_rejection(spec)
    assert found == pod_fields.PodRejection(reason, text)
