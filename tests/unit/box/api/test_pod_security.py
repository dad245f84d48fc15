"""What the box does about security contexts: each field of the API has a rule, and each rule a row in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api import pods
from tonnage_box.api import pod_fields, pod_security
from tonnage_box.api.pod_security import CAPABILITIES, FieldRule
from tonnage_box.apiserver.schema import schemas

Obj = dict[str, Any]
PAGE = Path(__file__).resolve().parents[4] / "docs" / "limitations.md"
_OF_A_NAMESPACE = re.compile(r"host[A-Z].*|share.*")
_OF_THE_NAME = {"hostAliases", "hostnameOverride"}


def _fields(name: str) -> set[str]:
    return set(schemas.struct(f"core.v1.{name}").fields)


def _names(rules: tuple[FieldRule, ...]) -> list[str]:
    return [rule.name for rule in rules]


def test_each_field_of_the_api_has_a_rule() -> None:
    assert sorted(_names(pod_security.POD_CONTEXT)) == sorted(_fields("PodSecurityContext"))
    assert sorted(_names(pod_security.CONTAINER_CONTEXT)) == sorted(_fields("SecurityContext"))
    assert _names(pod_security.EPHEMERAL_CONTEXT) == _names(pod_security.CONTAINER_CONTEXT)
    namespaces = {field for field in _fields("PodSpec") if _OF_A_NAMESPACE.fullmatch(field)} - _OF_THE_NAME
    assert sorted(_names(pod_security.POD)) == sorted(namespaces)


def test_the_kubelet_sees_each_field_that_it_must_look_at() -> None:
    places = (
        (pods.PodSpec, pod_security.POD),
        (pods.SecurityContext, pod_security.POD_CONTEXT),
        (pods.SecurityContext, pod_security.CONTAINER_CONTEXT),
    )
    for struct, rules in places:
        known = {field.encode_name for field in msgspec.structs.fields(struct)}
        assert {rule.name for rule in rules if rule.is_checked} <= known


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    section = PAGE.read_text().split("## Security contexts in the box\n")[1].split("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in section.splitlines() if "|" in line]
    rules = {
        "spec": pod_security.POD,
        "of the pod": pod_security.POD_CONTEXT,
        "of a container": pod_security.CONTAINER_CONTEXT,
    }
    effects: dict[tuple[str, str], list[str]] = {}
    for where, of in rules.items():
        for rule in of:
            effects.setdefault((rule.name, rule.effect), []).append(where)
    expected = [(f"`{name}`", ", ".join(where), effect) for (name, effect), where in effects.items()]
    assert sorted(rows[2:]) == sorted(expected)


@pytest.mark.parametrize(
    ("spec", "container", "said"),
    [
        ({"hostPID": True}, {}, "spec.hostPID: would let"),
        ({"hostIPC": True}, {}, "spec.hostIPC: would let"),
        ({"hostUsers": False}, {}, "spec.hostUsers: user namespaces are not made"),
        ({"securityContext": {"sysctls": [{"name": "kernel.x"}]}}, {}, 'forbidden sysctl: "kernel.x" not allowlisted'),
        ({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}, {}, "Cannot enforce AppArmor"),
        ({}, {"privileged": True}, "securityContext.privileged: would own this machine"),
        ({}, {"procMount": "Unmasked"}, "securityContext.procMount: /proc is always masked"),
        ({}, {"capabilities": {"add": ["chown", "NET_RAW"]}}, "securityContext.capabilities: CAP_NET_RAW cannot be"),
        ({}, {"capabilities": {"add": ["ALL"]}}, "securityContext.capabilities: ALL cannot be added"),
        (
            {},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/\ud800"}},
            'securityContext.seccompProfile: cannot load seccomp profile "a/\\ud800"',
        ),
    ],
)
def test_what_cannot_be_done_is_rejected_by_name(spec: Obj, container: Obj, said: str) -> None:
    own = {"name": "c", "securityContext": container}
    found = pod_fields.rejection({**spec, "containers": [own]}, own)
    assert found is not None
    assert said in found.text
    assert found.by_runtime == ("seccompProfile" in said)


def test_what_is_honored_is_not_rejected() -> None:
    spec = {"hostNetwork": True, "hostUsers": True, "hostPID": False, "securityContext": {"fsGroup": 1, "sysctls": []}}
    context = {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "procMount": "Default",
        "appArmorProfile": {"type": "Unconfined"},
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }
    own = {"name": "c", "securityContext": context}
    assert pod_fields.rejection({**spec, "containers": [own]}, own) is None
    assert pod_fields.warnings({**spec, "containers": [own]}) == []


def test_the_word_of_the_container_comes_first() -> None:
    spec = {"securityContext": {"seccompProfile": {"type": "Localhost"}}}
    own = {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}
    assert pod_fields.rejection(spec, own) is None
    assert pod_fields.rejection(spec, {}) is not None


def test_what_has_no_effect_is_warned_of() -> None:
    context = {"seLinuxOptions": {"level": "s0"}, "windowsOptions": {"runAsUserName": "x"}}
    spec: Obj = {
        "shareProcessNamespace": True,
        "securityContext": {**context, "seLinuxChangePolicy": "Recursive"},
        "containers": [{}, {"securityContext": {**context, "allowPrivilegeEscalation": True}}],
        "ephemeralContainers": [{"name": "e", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
    }
    found = [warning.partition(":")[0] for warning in pod_fields.warnings(spec, "spec.template.spec")]
    assert found == [
        "spec.template.spec.shareProcessNamespace",
        *(
            f"spec.template.spec.securityContext.{w}"
            for w in ("seLinuxChangePolicy", "seLinuxOptions", "windowsOptions")
        ),
        *(
            f"spec.template.spec.containers[1].securityContext.{word}"
            for word in ("allowPrivilegeEscalation", "seLinuxOptions", "windowsOptions")
        ),
        "spec.template.spec.ephemeralContainers[0].securityContext.capabilities",
    ]
    del spec["ephemeralContainers"]  # as a kubelet sees the pod that has learned of it before
    added = {"name": "e", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}
    assert pod_fields.rejection(spec, added) is None
    assert pod_fields.rejection({**spec, "initContainers": [added]}, added) is not None


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, set(CAPABILITIES)),
        ({"drop": ["ALL"]}, set()),
        ({"drop": ["all"], "add": ["net_bind_service", "CAP_CHOWN"]}, {"CAP_NET_BIND_SERVICE", "CAP_CHOWN"}),
        ({"drop": ["ALL", "CHOWN"], "add": ["CHOWN", "KILL"]}, {"CAP_KILL"}),
        ({"drop": ["KILL", "CAP_CHOWN", "NET_RAW"]}, set(CAPABILITIES) - {"CAP_KILL", "CAP_CHOWN"}),
        ({"add": ["SYS_PTRACE"]}, set(CAPABILITIES)),
    ],
)
def test_capabilities(asked: Obj, names: set[str]) -> None:
    assert pod_security.granted(asked) == sum(1 << CAPABILITIES[name] for name in names)
