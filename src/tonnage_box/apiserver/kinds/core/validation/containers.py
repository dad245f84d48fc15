"""Validation of a pod's containers, without their volume mounts."""

from __future__ import annotations

import re

from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.kinds.core.validation.volumes import mounts
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_label, qualified_name

_POLICIES = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_SCHEMES = ("HTTP", "HTTPS")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBE_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
# Resources that Kubernetes knows, but not of containers.
_OTHER_STANDARD = frozenset(
    {
        "storage", "requests.storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage", "limits.cpu",
        "limits.memory", "limits.ephemeral-storage", "pods", "persistentvolumeclaims", "configmaps", "secrets",
        "services", "resourcequotas", "replicationcontrollers", "services.nodeports", "services.loadbalancers",
    }
)  # fmt: skip
_PORT_LETTERS = re.compile("[-a-z0-9]+")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_PORTS = (1, 65535)
_NOT_EPHEMERAL = (
    "ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "restartPolicy",
    "resizePolicy", "restartPolicyRules",
)  # fmt: skip
_EPHEMERAL_MESSAGE = "cannot be set for an Ephemeral Container"
_VALUE_SOURCES = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"


_IDS = (0, 2**31 - 1)
_POLICIES_OF_PODS = {
    "fsGroupChangePolicy": ("Always", "OnRootMismatch"),
    "supplementalGroupsPolicy": ("Merge", "Strict"),
    "seLinuxChangePolicy": ("MountOption", "Recursive"),
}
_LONGEST_SYSCTL = 253
_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
MAX_RESOURCES = 100
"""Of a node, and of all containers of a pod together; Kubernetes has no limit. Each is compared on each node."""


def containers(faults: Faults, spec: Obj, known: dict[str, Obj]) -> None:
    """spec.containers, initContainers and ephemeralContainers."""
    if not spec.get("containers"):
        faults.required("spec.containers")
    names: set[str] = set()
    faults.too_many("spec.containers", len(_asked(spec)), MAX_RESOURCES, "resources")
    for word in ("containers", "initContainers", "ephemeralContainers"):
        for path, container in items(spec, word, "spec."):
            _container(faults, container, spec, known, path)
            faults.unique(f"{path}.name", container.get("name", ""), names)
            if word == "ephemeralContainers":
                _ephemeral(faults, container, spec, path)


def _asked(spec: Obj) -> set[str]:
    """Names of the resources that a pod requests, or has limits of."""
    every = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ()), spec]
    wanted = [container.get("resources") or {} for container in every] + [{"requests": spec.get("overhead")}]
    return {name for one in wanted for word in ("requests", "limits") for name in one.get(word) or ()}


def _ephemeral(faults: Faults, container: Obj, spec: Obj, path: str) -> None:
    """What an ephemeral container may not have, since nothing depends on it."""
    for word in _NOT_EPHEMERAL:
        if container.get(word):
            faults.forbidden(f"{path}.{word}", _EPHEMERAL_MESSAGE)
    for here, mount in items(container, "volumeMounts", f"{path}."):
        for word in ("subPath", "subPathExpr"):
            if mount.get(word):
                faults.forbidden(f"{here}.{word}", _EPHEMERAL_MESSAGE)
    target = container.get("targetContainerName")
    others = [c.get("name") for word in ("containers", "initContainers") for c in spec.get(word) or ()]
    if target and target not in others:
        faults.not_found(f"{path}.targetContainerName", target)


def _container(faults: Faults, container: Obj, spec: Obj, known: dict[str, Obj], path: str) -> None:
    image = container.get("image", "")
    faults.name(f"{path}.name", container.get("name", ""), dns_label)
    if not image:
        faults.required(f"{path}.image")
    elif image != image.strip():
        faults.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    for word, words in _POLICIES.items():
        if word in container:
            faults.one_of(f"{path}.{word}", container[word] or words[0], words)
    _ports(faults, container, f"{path}.")
    _environment(faults, container, f"{path}.")
    mounts(faults, container, known, path)
    _security_context(faults, container.get("securityContext") or {}, spec, f"{path}.securityContext")
    resources(faults, container.get("resources") or {}, f"{path}.resources")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _probe(faults, container[probe], f"{path}.{probe}", once=probe != "readinessProbe")


def pod_security_context(faults: Faults, spec: Obj) -> None:
    """spec.securityContext, and which namespaces of the node the pod shares (ValidatePodSecurityContext)."""
    context, path = spec.get("securityContext") or {}, "spec.securityContext"
    _users_and_profiles(faults, context, path)
    for word, words in _POLICIES_OF_PODS.items():
        if context.get(word) is not None:
            faults.one_of(f"{path}.{word}", context[word], words)
    names: set[str] = set()
    for here, sysctl in items(context, "sysctls", f"{path}."):
        faults.name(f"{here}.name", sysctl.get("name", ""), _sysctl_name)
        faults.unique(f"{here}.name", sysctl.get("name", ""), names)
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        faults.invalid("spec.shareProcessNamespace", True, detail)
    if spec.get("hostUsers") is False:
        for word, shown in (("hostPID", "HostPID"), ("hostIPC", "HostIPC")):  # so upstream names them
            if spec.get(word):
                faults.forbidden(f"spec.{shown}", "when `hostUsers` is false")


def _security_context(faults: Faults, context: Obj, spec: Obj, path: str) -> None:
    """A container's securityContext (ValidateSecurityContext)."""
    _users_and_profiles(faults, context, path)
    if (mount := context.get("procMount")) is not None:
        faults.one_of(f"{path}.procMount", mount, ("Default", "Unmasked"))
        if mount == "Unmasked" and spec.get("hostUsers") is not False:
            faults.invalid(f"{path}.procMount", mount, "`hostUsers` must be false to use `Unmasked`")
    if context.get("allowPrivilegeEscalation") is False:
        which = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            faults.invalid(path, context, f"{which} `privileged` to true")
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            faults.invalid(path, context, f"{which} `capabilities.Add` CAP_SYS_ADMIN")


def _users_and_profiles(faults: Faults, context: Obj, path: str) -> None:
    for word in ("fsGroup", "runAsUser", "runAsGroup"):
        faults.in_range(f"{path}.{word}", context.get(word), *_IDS)
    for index, group in enumerate(context.get("supplementalGroups") or ()):
        faults.in_range(f"{path}.supplementalGroups[{index}]", group, *_IDS)
    for word, name in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        if context.get(word) is not None:
            _profile(faults, context[word], f"{path}.{word}", name)


def _profile(faults: Faults, profile: Obj, path: str, name: str) -> None:
    """A seccomp or AppArmor profile."""
    kind, file = profile.get("type", ""), profile.get("localhostProfile")
    if not kind:
        faults.required(f"{path}.type", f"type is required when {path.rpartition('.')[2]} is set")
    else:
        faults.one_of(f"{path}.type", kind, ("Localhost", "RuntimeDefault", "Unconfined"))
    if kind == "Localhost" and not file:
        faults.required(f"{path}.localhostProfile", f"must be set when {name} type is Localhost")
    elif kind != "Localhost" and file is not None:
        faults.invalid(f"{path}.localhostProfile", file, f"can only be set when {name} type is Localhost")


def _sysctl_name(name: str) -> list[str]:
    if len(name) <= _LONGEST_SYSCTL and _SYSCTL.fullmatch(name):
        return []
    return [f"must have at most {_LONGEST_SYSCTL} characters and match regex ^{_SYSCTL.pattern}$"]


def _ports(faults: Faults, container: Obj, path: str) -> None:
    names: set[str] = set()
    for here, port in items(container, "ports", path):
        name = port.get("name")
        if name and faults.check(f"{here}.name", name, port_name):
            faults.unique(f"{here}.name", name, names)
        faults.given(here, port, "containerPort")
        for word in ("containerPort", "hostPort"):
            if port.get(word):
                faults.in_range(f"{here}.{word}", port[word], *_PORTS)
        faults.one_of(f"{here}.protocol", port.get("protocol") or "TCP", _PROTOCOLS)


def port_name(name: str) -> list[str]:
    """Fault of a port's name."""
    rules = (
        (len(name) <= 15, "must be no more than 15 characters"),
        (_PORT_LETTERS.fullmatch(name), "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
        (re.search("[a-z]", name), "must contain at least one letter (a-z)"),
        ("--" not in name, "must not contain consecutive hyphens"),
        (name == name.strip("-"), "must not begin or end with a hyphen"),
    )
    return [message for holds, message in rules if not holds]


def _environment(faults: Faults, container: Obj, path: str) -> None:
    for here, variable in items(container, "env", path):
        faults.name(f"{here}.name", variable.get("name", ""), _env_name)
        source = variable.get("valueFrom")
        if source is None:
            continue
        if not source:
            faults.invalid(f"{here}.valueFrom", "", f"must specify one of: {_VALUE_SOURCES}")
        elif variable.get("value"):
            faults.invalid(f"{here}.valueFrom", "", "may not be specified when `value` is not empty")
        elif len(source) > 1:
            faults.invalid(f"{here}.valueFrom", "", "may not have more than one field specified at a time")


def _env_name(name: str) -> list[str]:
    detail = "a valid environment variable name must consist only of printable ASCII characters other than '='"
    return [] if _ENV_NAME.fullmatch(name) else [detail]


def resources(faults: Faults, wanted: Obj, path: str) -> None:
    """ResourceRequirements: known or qualified names, not negative, requests within limits."""
    limits, requests = wanted.get("limits") or {}, wanted.get("requests") or {}
    for word, amounts in (("limits", limits), ("requests", requests)):
        for resource, text in amounts.items():
            here = f"{path}.{word}[{resource}]"
            _resource_name(faults, resource, here)
            faults.amount(here, text)
    for resource in sorted(requests.keys() & limits.keys()):
        request, limit = Quantity.parse(requests[resource]).nanos, Quantity.parse(limits[resource]).nanos
        extended = resource not in _STANDARD
        if (extended and request != limit) or request > limit:
            word = "equal to" if extended else "less than or equal to"
            detail = f"must be {word} {resource} limit of {limits[resource]}"
            faults.invalid(f"{path}.requests", requests[resource], detail)
    for resource in sorted(requests.keys() - limits.keys()):
        if resource not in _STANDARD and "/" in resource:
            faults.required(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _resource_name(faults: Faults, resource: str, path: str) -> None:
    if resource in _STANDARD or not faults.check(path, resource, qualified_name):
        return
    if "/" in resource or resource.startswith("hugepages-"):
        return
    if resource not in _OTHER_STANDARD:
        faults.invalid(path, resource, "must be a standard resource type or fully qualified")
    faults.invalid(path, resource, "must be a standard resource for containers")


def _probe(faults: Faults, probe: Obj, path: str, *, once: bool) -> None:
    given = [word for word in _HANDLERS if word in probe]
    if not given:
        faults.required(path, "must specify a handler type")
    for word in given[1:]:
        faults.forbidden(f"{path}.{word}", "may not specify more than 1 handler type")
    faults.not_negative(path, probe, *_PROBE_NUMBERS)
    if once and probe.get("successThreshold", 1) != 1:
        faults.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")
    if "exec" in probe:
        faults.given(f"{path}.exec", probe["exec"], "command")
    for word in ("httpGet", "tcpSocket", "grpc"):
        if word in probe:
            port, here = probe[word].get("port"), f"{path}.{word}.port"
            if isinstance(port, str):
                faults.check(here, port, port_name)
            else:
                faults.in_range(here, port or 0, *_PORTS)
            faults.one_of(f"{path}.{word}.scheme", probe[word].get("scheme") or "HTTP", _SCHEMES)
