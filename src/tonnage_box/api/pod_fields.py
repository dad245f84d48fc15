"""Fields of pods that the box does not honor, or not wholly, and what it answers. Pure.

Used by the API server, which warns, and by the kubelet, which rejects. Each field is honored, or rejected by name, or
has no effect and is answered with a warning: none is ignored silently. Those of security contexts are in pod_security.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tonnage_box.api.pod_security import CONTAINER_CONTEXT, EPHEMERAL_CONTEXT, POD_CONTEXT, FieldRule, Spec
from tonnage_box.api.pod_security import POD as NAMESPACES

REJECTED = "Pod was rejected: "
"""How the message of a pod begins that a kubelet does not let begin."""
Rules = tuple[FieldRule, ...]
_OS = "Failed to admit pod as the OS field doesn't match node OS"


def _os(value: Any) -> str:
    return _OS if value.get("name", "linux") != "linux" else ""


def _dns_policy(value: Any) -> str:
    is_meant = value == "ClusterFirstWithHostNet"
    return "is as Default: there is no DNS server of the cluster" if is_meant else ""


def _pull_secrets(value: Any) -> str:
    return "has no effect: the box pulls no images; use `tonnage images pull`" if value else ""


def _resize(value: Any) -> str:
    return "has no effect: containers are not resized" if value else ""


def _restart_rules(value: Any) -> str:
    return "these rules are not applied; leave them out, restartPolicy of a container is honored" if value else ""


def _resources(value: Any) -> str:
    return "there are no devices to claim; leave them out" if value.get("claims") else ""


POD = (
    FieldRule(
        "dnsPolicy",
        "`Default` and `None` are honored. `ClusterFirst` is as `Default`, as there is no DNS server of the cluster; "
        "`ClusterFirstWithHostNet` too, with a warning.",
        warns=_dns_policy,
    ),
    FieldRule("enableServiceLinks", "No variables of Services are set, also with `true`: Services have no effect."),
    FieldRule(
        "imagePullSecrets", "Warning: no images are pulled. `tonnage images pull` has logins.", warns=_pull_secrets
    ),
    FieldRule(
        "os",
        "`linux` is honored. With `windows` the pod is Failed (`PodOSNotSupported`).",
        rejects=_os,
        fails="PodOSNotSupported",
    ),
    FieldRule("resourceClaims", "The pod is not scheduled, and its condition names them."),
    FieldRule("resources", "Requests count for the scheduler. Limits of CPU and memory are not enforced."),
    FieldRule("runtimeClassName", "It must exist, and adds its overhead and nodes. All pods run in the same way."),
)
"""Of a pod's spec. Fields that are honored are not here."""
CONTAINER = (
    FieldRule("image", "A loaded image; else the container runs from the machine's /usr."),
    FieldRule("imagePullPolicy", "No images are pulled. With `--require-images`, `Never` has its own message."),
    FieldRule(
        "ports",
        "`hostPort` is honored by the scheduler, names by probes. All ports are the machine's.",
    ),
    FieldRule("resizePolicy", "Warning: containers are not resized.", warns=_resize),
    FieldRule(
        "resources",
        "Requests count for the scheduler. Limits of ephemeral-storage hold; those of CPU and memory are not enforced. "
        "`claims` are rejected.",
        rejects=_resources,
    ),
    FieldRule("restartPolicyRules", "Rejected.", rejects=_restart_rules),
    FieldRule("targetContainerName", "Event `NotSupported`: each container sees its own processes only."),
)
"""Of a container. Fields that are honored are not here."""
NESTED = {
    "of a mount": (
        FieldRule("mountPropagation", "`None` is honored; others are rejected."),
        FieldRule("recursiveReadOnly", "Read-only mounts are so with all that is mounted below, whatever it says."),
    ),
    "of a pod affinity term": (
        FieldRule(
            "namespaceSelector", "`{}` is honored. With others the pod is not scheduled, and its condition says it."
        ),
    ),
    "of a probe": (FieldRule("grpc", "The probe never succeeds, and has an Event."),),
    "of a toleration": (FieldRule("tolerationSeconds", "No effect: no taint evicts a pod."),),
    "of a variable": (FieldRule("fileKeyRef", "Rejected."),),
}
"""Of what is in a pod's spec or a container."""
_EPHEMERAL = "ephemeralContainers"
_CONTEXTS = {"initContainers": CONTAINER_CONTEXT, "containers": CONTAINER_CONTEXT, _EPHEMERAL: EPHEMERAL_CONTEXT}


@dataclass(frozen=True)
class Rejection:
    """Why a container cannot run. by_runtime: as for FieldRule."""

    text: str
    by_runtime: bool = False


@dataclass(frozen=True)
class PodRejection:
    """Why a pod is Failed before it begins."""

    reason: str
    text: str


def rejection(spec: Spec, container: Spec) -> Rejection | None:
    """Why a container of a pod cannot run in the box, with the field's name; None if it can."""
    inner = _context(container)
    outer = {word: value for word, value in _context(spec).items() if word not in inner}
    # Not looked up among the ephemeral ones: the caller's pod may be older than this container.
    is_ephemeral = not any(
        one.get("name") == container.get("name")
        for word in _CONTEXTS.keys() - {_EPHEMERAL}
        for one in spec.get(word) or ()
    )
    places = (
        ("spec.", (*NAMESPACES, *POD), spec),
        ("spec.securityContext.", POD_CONTEXT, outer),
        ("", CONTAINER, container),
        ("securityContext.", EPHEMERAL_CONTEXT if is_ephemeral else CONTAINER_CONTEXT, inner),
    )
    for path, rules, values in places:
        for rule, value in _given(rules, values):
            if text := rule.rejects(value):
                return Rejection(f"{path}{rule.name}: {text}", rule.by_runtime)
    return None


def pod_rejection(spec: Spec) -> PodRejection | None:
    """Why a kubelet does not let a new pod begin, in its words; None if it does."""
    contexts: list[tuple[Rules, Spec]] = [(POD_CONTEXT, _context(spec))]
    contexts += [(rules, _context(one)) for word, rules in _CONTEXTS.items() for one in spec.get(word) or ()]
    for rules, values in ((POD, spec), *contexts):
        for rule, value in _given(rules, values):
            if rule.fails and (text := rule.rejects(value)):
                return PodRejection(rule.fails, text)
    return None


def warnings(spec: Spec, path: str = "spec") -> list[str]:
    """What has no effect in a pod's spec, each with its path."""
    found = [*_warned(path, (*NAMESPACES, *POD), spec)]
    found += _warned(f"{path}.securityContext", POD_CONTEXT, _context(spec))
    for word, rules in _CONTEXTS.items():
        for index, container in enumerate(spec.get(word) or ()):
            here = f"{path}.{word}[{index}]"
            found += _warned(here, CONTAINER, container)
            found += _warned(f"{here}.securityContext", rules, _context(container))
    return found


def ephemeral_warnings(container: Spec) -> list[str]:
    """What has no effect in a container that was added to a running pod."""
    return _warned("securityContext", EPHEMERAL_CONTEXT, _context(container))


def _context(owner: Spec) -> Spec:
    return owner.get("securityContext") or {}


def _warned(path: str, rules: Rules, values: Spec) -> list[str]:
    return [f"{path}.{rule.name}: {text}" for rule, value in _given(rules, values) if (text := rule.warns(value))]


def _given(rules: Rules, values: Spec) -> Iterator[tuple[FieldRule, Any]]:
    return ((rule, values[rule.name]) for rule in rules if values.get(rule.name) is not None)
