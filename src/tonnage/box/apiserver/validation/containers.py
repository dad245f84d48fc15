"""Validation of a pod's containers, without their volume mounts."""

from __future__ import annotations

import re
from typing import Any

from tonnage.api.quantity import Quantity
from tonnage.box.apiserver.validation.field_errors import Faults
from tonnage.box.apiserver.validation.meta import dns_label, qualified_name
from tonnage.box.apiserver.validation.volumes import mounts

Obj = dict[str, Any]
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
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
_PORTS = "must be between 1 and 65535, inclusive"


def containers(faults: Faults, spec: Obj, known: dict[str, Obj]) -> None:
    """spec.containers, initContainers and ephemeralContainers."""
    if not spec.get("containers"):
        faults.required("spec.containers")
    names: set[str] = set()
    for word in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(word) or ()):
            path = f"spec.{word}[{index}]"
            _container(faults, container, known, path)
            name = container.get("name", "")
            if name in names:
                faults.duplicate(f"{path}.name", name)
            names.add(name)


def _container(faults: Faults, container: Obj, known: dict[str, Obj], path: str) -> None:
    name, image = container.get("name", ""), container.get("image", "")
    if not name:
        faults.required(f"{path}.name")
    else:
        faults.each(f"{path}.name", name, dns_label(name))
    if not image:
        faults.required(f"{path}.image")
    elif image != image.strip():
        faults.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    _one_of(faults, container.get("imagePullPolicy"), _PULL_POLICIES, f"{path}.imagePullPolicy")
    _one_of(faults, container.get("terminationMessagePolicy"), _MESSAGE_POLICIES, f"{path}.terminationMessagePolicy")
    _ports(faults, container.get("ports") or [], f"{path}.ports")
    _environment(faults, container.get("env") or [], f"{path}.env")
    mounts(faults, container, known, path)
    resources(faults, container.get("resources") or {}, f"{path}.resources")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _probe(faults, container[probe], f"{path}.{probe}", once=probe != "readinessProbe")


def _one_of(faults: Faults, value: str | None, words: tuple[str, ...], path: str) -> None:
    if value and value not in words:
        faults.not_supported(path, value, words)


def _ports(faults: Faults, ports: list[Obj], path: str) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        here, name, number = f"{path}[{index}]", port.get("name"), port.get("containerPort", 0)
        if name:
            messages = port_name(name)
            faults.each(f"{here}.name", name, messages)
            if not messages and name in names:
                faults.duplicate(f"{here}.name", name)
            names.add(name)
        if not number:
            faults.required(f"{here}.containerPort")
        elif not 0 < number < 65536:
            faults.invalid(f"{here}.containerPort", number, _PORTS)
        if port.get("hostPort") and not 0 < port["hostPort"] < 65536:
            faults.invalid(f"{here}.hostPort", port["hostPort"], _PORTS)
        _one_of(faults, port.get("protocol"), _PROTOCOLS, f"{here}.protocol")


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


def _environment(faults: Faults, variables: list[Obj], path: str) -> None:
    for index, variable in enumerate(variables):
        here, name = f"{path}[{index}]", variable.get("name", "")
        if not name:
            faults.required(f"{here}.name")
        elif not _ENV_NAME.fullmatch(name):
            detail = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            faults.invalid(f"{here}.name", name, detail)
        source = variable.get("valueFrom")
        if source is None:
            continue
        if not source:
            detail = (
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            )
            faults.invalid(f"{here}.valueFrom", "", detail)
        elif variable.get("value"):
            faults.invalid(f"{here}.valueFrom", "", "may not be specified when `value` is not empty")
        elif len(source) > 1:
            faults.invalid(f"{here}.valueFrom", "", "may not have more than one field specified at a time")


def resources(faults: Faults, wanted: Obj, path: str) -> None:
    """ResourceRequirements: known or qualified names, not negative, requests within limits."""
    limits, requests = wanted.get("limits") or {}, wanted.get("requests") or {}
    for word, amounts in (("limits", limits), ("requests", requests)):
        for resource, text in amounts.items():
            here = f"{path}.{word}[{resource}]"
            _resource_name(faults, resource, here)
            if Quantity.parse(text).nanos < 0:
                faults.invalid(here, text, "must be greater than or equal to 0")
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
    messages = qualified_name(resource)
    faults.each(path, resource, messages)
    if messages or "/" in resource or resource in _STANDARD or resource.startswith("hugepages-"):
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
    for word in _PROBE_NUMBERS:
        if probe.get(word, 0) < 0:
            faults.invalid(f"{path}.{word}", probe[word], "must be greater than or equal to 0")
    if once and probe.get("successThreshold", 1) != 1:
        faults.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")
    if "exec" in probe and not probe["exec"].get("command"):
        faults.required(f"{path}.exec.command")
    for word in ("httpGet", "tcpSocket", "grpc"):
        if word in probe:
            _port(faults, probe[word].get("port"), f"{path}.{word}.port")
            _one_of(faults, probe[word].get("scheme"), _SCHEMES, f"{path}.{word}.scheme")


def _port(faults: Faults, port: Any, path: str) -> None:
    if isinstance(port, str):
        faults.each(path, port, port_name(port))
    elif not isinstance(port, int) or not 0 < port < 65536:
        faults.invalid(path, port or 0, _PORTS)
