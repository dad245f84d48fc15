"""Fields of security contexts, and the pod's fields of namespaces: what the box does about each. Pure.

The other fields of pods are in pod_fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
_SAFE = frozenset(
    {
        "ip_local_port_range", "ip_local_reserved_ports", "ip_unprivileged_port_start", "ping_group_range",
        "tcp_fin_timeout", "tcp_keepalive_intvl", "tcp_keepalive_probes", "tcp_keepalive_time", "tcp_rmem",
        "tcp_syncookies", "tcp_wmem",
    }
)  # fmt: skip
"""Sysctls of net.ipv4 that a kubelet allows in a network that is the pod's own."""
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

    by_runtime: under Kubernetes it is the container runtime that rejects it. fails: the kubelet does, before the pod
    begins, so the pod is Failed for this reason.
    """

    name: str
    effect: str
    rejects: Check = _never
    warns: Check = _never
    by_runtime: bool = False
    fails: str = ""

    @property
    def is_checked(self) -> bool:
        """Whether the value matters."""
        return self.rejects is not _never or self.warns is not _never


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
    if not value:
        return ""
    name = str(value[0].get("name"))[:253]
    why = "not allowed with host Net enabled" if name.removeprefix("net.ipv4.") in _SAFE else "not allowlisted"
    return f"forbidden sysctl: {json.dumps(name)} {why}"


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
    "appArmorProfile",
    "`Unconfined` is honored. With other types the pod is Failed (`AppArmor`): no profile is set.",
    rejects=_app_armor,
    fails="AppArmor",
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
        "The pod is Failed (`SysctlForbidden`): those of the network are the machine's, and others are not set.",
        rejects=_sysctls,
        fails="SysctlForbidden",
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
