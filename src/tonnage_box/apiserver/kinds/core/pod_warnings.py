"""Warnings about pods and templates of pods, in Kubernetes' words and order (pkg/api/pod/warnings.go). Pure.

Each function takes a path that ends in a dot, or is empty, as `spec.template.`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.kinds.core.node_labels import OLD_LABELS, of_term, of_terms
from tonnage_box.apiserver.kinds.core.pod_defaults import containers
from tonnage_box.apiserver.printers.table import dig
from tonnage_box.apiserver.storage.store import Obj

_NO_SELECTOR = "a null labelSelector results in matching no pod"
_REQUIRED, _PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
_SYSCTLS = 'non-functional in v1.11+; use the "sysctls" field instead'
_OLD_ANNOTATIONS: Mapping[str, str] = {
    "scheduler.alpha.kubernetes.io/critical-pod": 'non-functional in v1.16+; use the "priorityClassName" field instead',
    "security.alpha.kubernetes.io/sysctls": _SYSCTLS,
    "security.alpha.kubernetes.io/unsafe-sysctls": _SYSCTLS,
}
_SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
_CONTAINER_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
_OLD_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
_GONE_VOLUMES: Mapping[str, str] = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_SHOWN = {"storageos": "storageOS"}

_MOST, _COMPARED = 1000, 100
"""Warnings of a pod, which people read; volumes, files of a volume, equal ports that are compared with each other."""


def of_pod(obj: Obj, path: str) -> list[str]:
    """Return all warnings about a pod, or a template of pods."""
    spec, notes = obj.get("spec") or {}, dig(obj, "metadata", "annotations") or {}
    here = f"{path}spec."
    parts: Iterable[Iterable[str]] = (
        _node_labels(spec, here),
        _spread(spec, here),
        (f"{path}metadata.annotations[{key}]: {why}" for key, why in _OLD_ANNOTATIONS.items() if key in notes),
        _volumes(spec, here),
        _overlaps(spec),
        _repeated(spec, here, "hostAliases", "ip"),
        _repeated(spec, here, "imagePullSecrets", "name"),
        _nameless(spec, here),
        _pod_seccomp(spec, notes, path),
        _containers(spec, notes, path),
        _ports(spec, here),
        _port_names(spec, here),
        _affinity_to_none(spec, here),
        _addresses(spec, here),
    )
    return list(islice(chain.from_iterable(parts), _MOST))


def sizes(spec: Any, path: str) -> list[str]:
    """Return the warnings about the sizes of a claim's spec: whatever uses a fraction of a byte rounds it up."""
    return [
        fault
        for word in ("requests", "limits")
        if (fault := _fraction(dig(spec or {}, "resources", word, "storage"), f"{path}.resources.{word}[storage]"))
    ]


def _fraction(text: Any, path: str) -> str:
    if text is None or not Quantity.parse(text).milli % 1000:
        return ""
    return f'{path}: fractional byte value "{text}" is invalid, must be an integer'


def _node_labels(spec: Obj, path: str) -> Iterator[str]:
    for key in spec.get("nodeSelector") or ():
        if key in OLD_LABELS:
            yield f"{path}nodeSelector[{key}]: {OLD_LABELS[key]}"
    affinity = dig(spec, "affinity", "nodeAffinity") or {}
    where = f"{path}affinity.nodeAffinity"
    terms = dig(affinity, _REQUIRED, "nodeSelectorTerms") or ()
    yield from of_terms(terms, f"{where}.{_REQUIRED}.nodeSelectorTerms")
    for index, term in enumerate(affinity.get(_PREFERRED) or ()):
        yield from of_term(term.get("preference") or {}, f"{where}.{_PREFERRED}[{index}].preference", values=True)


def _spread(spec: Obj, path: str) -> Iterator[str]:
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        here, key = f"{path}topologySpreadConstraints[{index}]", constraint.get("topologyKey", "")
        if key in OLD_LABELS:
            yield f"{here}.topologyKey: {key} is {OLD_LABELS[key]}"
        if constraint.get("labelSelector") is None:
            yield f"{here}.labelSelector: {_NO_SELECTOR}"


def _volumes(spec: Obj, path: str) -> Iterator[str]:
    for index, volume in enumerate(spec.get("volumes") or ()):
        here = f"{path}volumes[{index}]"
        for word, why in _GONE_VOLUMES.items():
            if word in volume:
                yield f"{here}.{_SHOWN.get(word, word)}: {why}"
        wanted = dig(volume, "ephemeral", "volumeClaimTemplate", "spec")
        yield from sizes(wanted, f"{here}.ephemeral.volumeClaimTemplate.spec")


def _overlaps(spec: Obj) -> Iterator[str]:
    """Return the warnings about files of a volume of which one hides another, or is below it."""
    for volume in (spec.get("volumes") or ())[:_COMPARED]:
        name = volume.get("name", "")
        for word, shown, key in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            if word in volume:
                items, of = volume[word].get("items") or (), f'{shown} "{volume[word].get(key, "")}"'
                yield from _hidden(name, of, [(item.get("path", ""), "") for item in items])
        items = dig(volume, "downwardAPI", "items") or ()
        yield from _hidden(name, "DownwardAPI", [(item.get("path", ""), "") for item in items])
        if "projected" in volume:
            sources = volume["projected"].get("sources") or ()
            yield from (f'volume "{name}" (Projected) has no sources provided' for source in sources if not source)
            files = [file for source in sources for file in _projected(source)]
            yield from _hidden(name, "Projected", files)


def _projected(source: Obj) -> Iterator[tuple[str, str]]:
    """Return the files of a source of a projected volume, and what they are of."""
    for word, shown in (("configMap", "ConfigMap"), ("secret", "Secret")):
        part = source.get(word) or {}
        for item in part.get("items") or ():
            yield item.get("path", ""), f'{shown} "{part.get("name", "")}"'
    for item in dig(source, "downwardAPI", "items") or ():
        yield item.get("path", ""), "DownwardAPI"
    if token := source.get("serviceAccountToken"):
        yield token.get("path", ""), "ServiceAccountToken"
    if bundle := source.get("clusterTrustBundle"):
        of = bundle["name"] if "name" in bundle else bundle.get("signerName", "")
        yield bundle.get("path", ""), f'ClusterTrustBundle "{of}"'
    for word, shown in (
        ("certificateChainPath", "chain"),
        ("keyPath", "key"),
        ("credentialBundlePath", "credential bundle"),
    ):
        if file := dig(source, "podCertificate", word):
            yield file, f"PodCertificate {shown}"


def _hidden(volume: str, of: str, files: Iterable[tuple[str, str]]) -> Iterator[str]:
    seen: list[tuple[str, str]] = []
    for file in ((path.rstrip("/"), source) for path, source in islice(files, _COMPARED)):
        for other in seen:
            if file[0] and other[0] and _is_within(file[0], other[0]):
                yield f'volume "{volume}" ({of}): overlapping paths: {_shown(*file)} with {_shown(*other)}'
        seen.append(file)


def _is_within(path: str, other: str) -> bool:
    short, long = sorted((path, other), key=len)
    return long.startswith(short) and long[len(short) : len(short) + 1] in ("", "/")


def _shown(path: str, source: str) -> str:
    return f'"{path}" ({source})' if source else f'"{path}"'


def _repeated(spec: Obj, path: str, word: str, key: str) -> Iterator[str]:
    seen = set()
    for index, item in enumerate(spec.get(word) or ()):
        value = item.get(key, "")
        if value in seen:
            yield f'{path}{word}[{index}].{key}: duplicate {key} "{value}"'
        seen.add(value)


def _nameless(spec: Obj, path: str) -> Iterator[str]:
    for index, secret in enumerate(spec.get("imagePullSecrets") or ()):
        if not secret.get("name"):
            yield f'{path}imagePullSecrets[{index}].name: invalid empty name ""'


def _pod_seccomp(spec: Obj, notes: Obj, path: str) -> Iterator[str]:
    for word in ("memory", "ephemeral-storage"):
        if fault := _fraction(dig(spec, "overhead", word), f"{path}spec.overhead[{word}]"):
            yield fault
    if _SECCOMP in notes and not dig(spec, "securityContext", "seccompProfile"):
        yield f"{path}metadata.annotations[{_SECCOMP}]: {_OLD_SECCOMP}"


def _containers(spec: Obj, notes: Obj, path: str) -> Iterator[str]:
    for word, index, container in containers(spec):
        note = f"{_CONTAINER_SECCOMP}{container.get('name', '')}"
        if note in notes and not dig(container, "securityContext", "seccompProfile"):
            yield f"{path}metadata.annotations[{note}]: {_OLD_SECCOMP}"
        here = f"{path}spec.{word}[{index}]"
        for resource in ("memory", "ephemeral-storage"):
            for kind in ("limits", "requests"):
                amount = dig(container, "resources", kind, resource)
                if fault := _fraction(amount, f"{here}.resources.{kind}[{resource}]"):
                    yield fault
        yield from _variables(container, here)


def _variables(container: Obj, path: str) -> Iterator[str]:
    """Return the warnings about variables that are given twice, unless the later one extends the earlier."""
    seen = set()
    for index, variable in enumerate(container.get("env") or ()):
        name, value = variable.get("name", ""), variable.get("value", "")
        before = f"$({name})"
        if name in seen and ("valueFrom" in variable or value == before or before not in value):
            yield f'{path}.env[{index}]: hides previous definition of "{name}", which may be dropped when using apply'
        seen.add(name)


def _each_port(spec: Obj, path: str) -> Iterator[tuple[str, Obj]]:
    for word, index, container in containers(spec):
        for number, port in enumerate(container.get("ports") or ()):
            yield f"{path}{word}[{index}].ports[{number}]", port


def _ports(spec: Obj, path: str) -> Iterator[str]:
    seen: dict[tuple[Any, Any], list[tuple[str, Obj]]] = {}
    for here, port in _each_port(spec, path):
        if port.get("hostIP") and not port.get("hostPort"):
            yield f"{here}: hostIP set without hostPort: {_as_go(port)}"
        others = seen.setdefault((port.get("containerPort"), port.get("protocol")), [])
        yield from (f"{here}: {why} port definition with {place}" for place, o in others if (why := _clash(port, o)))
        if len(others) < _COMPARED:
            others.append((here, port))


def _as_go(port: Obj) -> str:
    fields = {"Name": "name", "HostPort": "hostPort", "ContainerPort": "containerPort", "Protocol": "protocol"}
    shown = [f"{go}:{port.get(word, 0 if word.endswith('Port') else '')}" for go, word in fields.items()]
    return "{" + " ".join([*shown, f"HostIP:{port.get('hostIP', '')}"]) + "}"


def _clash(port: Obj, other: Obj) -> str:
    (ip, host), (its_ip, its_host) = ((p.get("hostIP", ""), p.get("hostPort", 0)) for p in (port, other))
    if (ip, host) == (its_ip, its_host):
        return "duplicate"
    if not host or not its_host:
        return "overlapping"
    return "dangerously ambiguous" if host == its_host and bool(ip) != bool(its_ip) else ""


def _port_names(spec: Obj, path: str) -> Iterator[str]:
    seen: dict[str, str] = {}
    for here, port in _each_port(spec, path):
        name = port.get("name", "")
        if name and (first := seen.setdefault(name, here)) != here:
            uses = f"services and probes that select ports by name will use {first}"
            yield f'{here}: duplicate port name "{name}" with {first}, {uses}'


def _affinity_to_none(spec: Obj, path: str) -> Iterator[str]:
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        yield f"{path}terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
    for word in ("podAffinity", "podAntiAffinity"):
        affinity, where = dig(spec, "affinity", word) or {}, f"{path}affinity.{word}"
        for index, term in enumerate(affinity.get(_REQUIRED) or ()):
            if term.get("labelSelector") is None:
                yield f"{where}.{_REQUIRED}[{index}].labelSelector: {_NO_SELECTOR}"
        for index, term in enumerate(affinity.get(_PREFERRED) or ()):
            if dig(term, "podAffinityTerm", "labelSelector") is None:
                yield f"{where}.{_PREFERRED}[{index}].podAffinityTerm.labelSelector: {_NO_SELECTOR}"


def _addresses(spec: Obj, path: str) -> Iterator[str]:
    for index, text in enumerate(dig(spec, "dnsConfig", "nameservers") or ()):
        yield from _not_canonical(text, f"{path}dnsConfig.nameservers[{index}]")
    for index, alias in enumerate(spec.get("hostAliases") or ()):
        yield from _not_canonical(alias.get("ip", ""), f"{path}hostAliases[{index}].ip")


def _not_canonical(text: str, path: str) -> Iterator[str]:
    with suppress(ValueError):  # validation says so
        address = ipaddress.ip_address(text)
        if isinstance(address, ipaddress.IPv6Address) and str(address) != text:
            yield f'{path}: IPv6 address "{text}" should be in RFC 5952 canonical format ("{address}")'
