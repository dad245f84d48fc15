"""Fields of security contexts, and the pod's fields of namespaces: what the box does about each. Pure.

Used by the API server, which warns, and by the kubelet, which rejects. Each field is honored, or rejected by name, or
has no effect and is answered with a warning: none is ignored silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

CAPABILITIES = {
    "CAP_AUDIT_WRITE": 29,
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SETFCAP": 31,
    "CAP_SETGID": 6,
    "CAP_SETPCAP": 8,
    "CAP_SETUID": 7,
    "CAP_SYS_CHROOT": 18,
}
"""What a container has by default, with the numbers of linux/capability.h."""
ALL = "ALL"
LOCALHOST = "Localhost"

Spec = Mapping[str, Any]
Check = Callable[[Any], str]


def _never(value: Any) -> str:
    return ""


def _always(text: str) -> Check:
    return lambda value: text if value else ""


@dataclass(frozen=True)
class FieldRule:
    """What the box does about a field. effect: for people. rejects and warns: of a value, why; "" where it is fine.

    by_runtime: under Kubernetes it is the container runtime that rejects it.
    """

    name: str
    effect: str
    rejects: Check = _never
    warns: Check = _never
    by_runtime: bool = False

    @property
    def is_checked(self) -> bool:
        """Whether the value matters."""
        return self.rejects is not _never or self.warns is not _never


@dataclass(frozen=True)
class Rejection:
    """Why a container cannot run. by_runtime: as for FieldRule."""

    text: str
    by_runtime: bool = False


def capability(name: str) -> str:
    """A capability's whole name: runtimes take it in any case, and Kubernetes' own words have no prefix."""
    upper = name.upper()
    return upper if upper.startswith("CAP_") or upper == ALL else f"CAP_{upper}"


def granted(capabilities: Spec) -> int:
    """Mask of the capabilities that a container has, of its `add` and `drop`; drop wins, but for drop ALL.

    What containers never have is left out.
    """
    dropped = {capability(name) for name in capabilities.get("drop") or ()}
    added = {capability(name) for name in capabilities.get("add") or ()}
    names = added if ALL in dropped else CAPABILITIES.keys()
    return sum(1 << number for name, number in CAPABILITIES.items() if name in names and name not in dropped)


def _capabilities(value: Any) -> str:
    more = sorted({capability(name) for name in value.get("add") or ()} - CAPABILITIES.keys())
    if not more:
        return ""
    shown = ", ".join(more)[:200].encode("ascii", "backslashreplace").decode()
    return f"{shown} cannot be added: containers of the box get {', '.join(CAPABILITIES)} at most"


def _sysctls(value: Any) -> str:
    return f"forbidden sysctl: {json.dumps(str(value[0].get('name'))[:253])} not allowlisted" if value else ""


def _app_armor(value: Any) -> str:
    return "" if value.get("type") == "Unconfined" else "Cannot enforce AppArmor: the box sets no profiles"


def _host_users(value: Any) -> str:
    return "user namespaces are not made; leave it out" if value is False else ""


def _seccomp(value: Any) -> str:
    if value.get("type") != LOCALHOST:
        return ""
    shown = json.dumps(str(value.get("localhostProfile"))[:200])
    return f"cannot load seccomp profile {shown}: the box reads no profiles; use RuntimeDefault"


def _proc_mount(value: Any) -> str:
    return "/proc is always masked; leave it out" if value == "Unmasked" else ""


_SE_LINUX = "has no effect: the box sets no SELinux labels"
_WINDOWS = "has no effect on Linux"
_LABEL = FieldRule("seLinuxOptions", "Warning: no SELinux label is set.", warns=_always(_SE_LINUX))
_OF_WINDOWS = FieldRule("windowsOptions", "Warning: no effect on Linux.", warns=_always(_WINDOWS))
_ARMOR = FieldRule(
    "appArmorProfile", "`Unconfined` is honored; other types are rejected: no profile is set.", rejects=_app_armor
)
_SECCOMP = FieldRule(
    "seccompProfile",
    "`RuntimeDefault` is honored, and holds without the field too. `Unconfined` is honored, but for calls that would "
    "reach keys or other volumes. `Localhost` is rejected.",
    rejects=_seccomp,
    by_runtime=True,
)
_OWN = "would let the container reach processes of the machine; leave it out"
POD = (
    FieldRule("hostIPC", "Rejected.", rejects=_always(_OWN)),
    FieldRule("hostNetwork", "Honored: containers share the machine's network, also with `false`."),
    FieldRule("hostPID", "Rejected.", rejects=_always(_OWN)),
    FieldRule(
        "hostUsers", "`true` is honored; `false` is rejected: there are no user namespaces.", rejects=_host_users
    ),
    FieldRule(
        "shareProcessNamespace",
        "Warning: each container sees its own processes only.",
        warns=_always("has no effect: each container sees its own processes only"),
    ),
)
"""Of a pod's spec."""
POD_CONTEXT = (
    _ARMOR,
    FieldRule("fsGroup", "Honored."),
    FieldRule("fsGroupChangePolicy", "Honored."),
    FieldRule("runAsGroup", "Honored."),
    FieldRule("runAsNonRoot", "Honored."),
    FieldRule("runAsUser", "Honored."),
    FieldRule("seLinuxChangePolicy", "Warning: no SELinux label is set.", warns=_always(_SE_LINUX)),
    _LABEL,
    _SECCOMP,
    FieldRule("supplementalGroups", "Honored."),
    FieldRule("supplementalGroupsPolicy", "Honored."),
    FieldRule(
        "sysctls",
        "Rejected: those of the network are the machine's. The pod waits, where Kubernetes marks it Failed.",
        rejects=_sysctls,
    ),
    _OF_WINDOWS,
)
"""Of PodSecurityContext."""
CONTAINER_CONTEXT = (
    FieldRule(
        "allowPrivilegeEscalation",
        "Always `false`: no program gains rights. `true` is answered with a warning.",
        warns=_always("has no effect: no program gains rights (no_new_privs)"),
    ),
    _ARMOR,
    FieldRule(
        "capabilities",
        "`drop` is honored. `add` is honored for capabilities that containers have by default. Others are rejected; "
        "of ephemeral containers they are answered with a warning, as `kubectl debug` adds them by itself.",
        rejects=_capabilities,
    ),
    FieldRule("privileged", "`true` is rejected.", rejects=_always("would own this machine; leave it out")),
    FieldRule("procMount", "`Default` is honored; `Unmasked` is rejected.", rejects=_proc_mount),
    FieldRule("readOnlyRootFilesystem", "Honored."),
    FieldRule("runAsGroup", "Honored."),
    FieldRule("runAsNonRoot", "Honored."),
    FieldRule("runAsUser", "Honored."),
    _LABEL,
    _SECCOMP,
    _OF_WINDOWS,
)
"""Of a container's SecurityContext."""
EPHEMERAL_CONTEXT = tuple(
    replace(rule, rejects=_never, warns=rule.rejects) if rule.name == "capabilities" else rule
    for rule in CONTAINER_CONTEXT
)
_EPHEMERAL = "ephemeralContainers"
_CONTEXTS = {"initContainers": CONTAINER_CONTEXT, "containers": CONTAINER_CONTEXT, _EPHEMERAL: EPHEMERAL_CONTEXT}


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
        ("spec", POD, spec),
        ("spec.securityContext", POD_CONTEXT, outer),
        ("securityContext", EPHEMERAL_CONTEXT if is_ephemeral else CONTAINER_CONTEXT, inner),
    )
    for path, rules, values in places:
        for rule, value in _given(rules, values):
            if text := rule.rejects(value):
                return Rejection(f"{path}.{rule.name}: {text}", rule.by_runtime)
    return None


def warnings(spec: Spec, path: str = "spec") -> list[str]:
    """What has no effect in a pod's spec, each with its path."""
    found = [*_warned(path, POD, spec), *_warned(f"{path}.securityContext", POD_CONTEXT, _context(spec))]
    for word, rules in _CONTEXTS.items():
        for index, container in enumerate(spec.get(word) or ()):
            found += _warned(f"{path}.{word}[{index}].securityContext", rules, _context(container))
    return found


def ephemeral_warnings(container: Spec) -> list[str]:
    """What has no effect in a container that was added to a running pod."""
    return _warned("securityContext", EPHEMERAL_CONTEXT, _context(container))


def _context(owner: Spec) -> Spec:
    return owner.get("securityContext") or {}


def _warned(path: str, rules: tuple[FieldRule, ...], values: Spec) -> list[str]:
    return [f"{path}.{rule.name}: {text}" for rule, value in _given(rules, values) if (text := rule.warns(value))]


def _given(rules: tuple[FieldRule, ...], values: Spec) -> Iterator[tuple[FieldRule, Any]]:
    return ((rule, values[rule.name]) for rule in rules if values.get(rule.name) is not None)
