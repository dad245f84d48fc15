"""Validation of pods: at creation, and the few fields that may change later."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from tonnage_box.apiserver.kinds.core.validation.containers import containers, pod_security_context
from tonnage_box.apiserver.kinds.core.validation.scheduling import added_tolerations, removed_gates, scheduling
from tonnage_box.apiserver.kinds.core.validation.volumes import volumes
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.address import pod_address
from tonnage_box.apiserver.validation.field_errors import Faults, difference, items
from tonnage_box.apiserver.validation.meta import (
    annotation_map,
    dns_label,
    dns_subdomain,
    kind_rules,
    labels,
    name_rule,
)

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_INT32 = 2**31 - 1
_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)

_SYSTEMS = ("linux", "windows")
_LABEL = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_search_domain = name_rule(
    253,
    rf"{_LABEL}(\.{_LABEL})*",
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    "start and end with an alphanumeric character",
    "example.com",
)
_NAMESERVERS, _SEARCHES, _SEARCH_CHARACTERS = 3, 32, 2048
_LONGEST_NAME = 64


def _ephemeral_containers(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Writes of pods/ephemeralcontainers: what was added stays as it is (KEP-277)."""
    assert old is not None
    path = "spec.ephemeralContainers"
    wanted = {container.get("name"): container for container in new["spec"].get("ephemeralContainers") or ()}
    for was in old["spec"].get("ephemeralContainers") or ():
        name, now = was["name"], wanted.get(was["name"])
        if now is None:
            faults.forbidden(path, f'existing ephemeral containers "{name}" may not be removed\n')
        elif now != was:
            faults.forbidden(path, f'existing ephemeral containers "{name}" may not be changed\n{difference(now, was)}')
    _spec(faults, new)


@kind_rules(whole=True, ephemeralcontainers=_ephemeral_containers)
def validate(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Pod. Writes of a subresource (status, binding ...) preserve the spec, so only metadata is checked."""
    if old is None or new["spec"] != old["spec"]:
        _spec(faults, new)
        if old is None:
            at_creation(faults, new["spec"])
        if old is None and new["spec"].get("ephemeralContainers"):
            faults.forbidden("spec.ephemeralContainers", "cannot be set on create")
        if old is not None:
            _update(faults, new["spec"], old["spec"])


def template(faults: Faults, template: Obj, path: str) -> None:
    """A template of pods: what is wrong with the pods that would be made from it."""
    found = Faults()
    meta = template.get("metadata") or {}
    labels(found, meta.get("labels") or {}, "metadata.labels")
    annotation_map(found, meta.get("annotations") or {}, "metadata.annotations")
    _spec(found, {"metadata": meta, "spec": template.get("spec") or {}}, is_template=True)
    if (template.get("spec") or {}).get("ephemeralContainers"):
        found.forbidden("spec.ephemeralContainers", "ephemeral containers not allowed in pod template")
    faults.moved(found, "", f"{path}.")


def _spec(faults: Faults, pod: Obj, *, is_template: bool = False) -> None:
    spec = pod["spec"]
    if _has_nul(spec):
        _no_nul(faults, spec, "spec")
    known = volumes(faults, pod["metadata"].get("name", ""), spec, "spec.")
    containers(faults, spec, known)
    pod_security_context(faults, spec)
    for word, words in (("restartPolicy", _RESTART_POLICIES), ("dnsPolicy", _DNS_POLICIES)):
        faults.one_of(f"spec.{word}", spec.get(word), words)
    faults.not_negative("spec", spec, "terminationGracePeriodSeconds")
    faults.optional("spec", spec, dns_subdomain, "serviceAccountName", "nodeName")
    faults.optional("spec", spec, dns_label, "hostname")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        faults.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    faults.in_range("spec.activeDeadlineSeconds", spec.get("activeDeadlineSeconds"), 1, _INT32)
    scheduling(faults, spec, is_template=is_template)


def _has_nul(spec: Obj) -> bool:
    """Whether any text has one: rare, and much faster than a check of each."""
    return b"\\u0000" in msgspec.json.encode(spec)


def _no_nul(faults: Faults, value: Any, path: str) -> None:
    """No text of a pod may hold a NUL byte: programs, paths and mounts cannot be given one."""
    if isinstance(value, str):
        if "\0" in value:
            faults.invalid(path, value, "must not contain NUL characters")
    elif isinstance(value, dict):
        for key, item in value.items():
            if "\0" in key:
                faults.invalid(path, key, "must not contain NUL characters")
            _no_nul(faults, item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _no_nul(faults, item, f"{path}[{index}]")


def _update(faults: Faults, new: Obj, old: Obj) -> None:
    for word in ("containers", "initContainers"):
        if len(new.get(word) or ()) != len(old.get(word) or ()):
            faults.forbidden(f"spec.{word}", "pod updates may not add or remove containers")
            return
    if not _deadline(faults, new, old):
        return
    added_tolerations(faults, new, old)
    removed_gates(faults, new, old)
    wanted, before = copy.deepcopy(new), copy.deepcopy(old)
    _forget_changeable(wanted, before)
    if old.get("schedulingGates"):
        _forget_gated(faults, wanted, before)
    if wanted != before:
        detail = f"pod updates may not change fields other than {_UPDATABLE}\n{difference(wanted, before)}"
        faults.forbidden("spec", detail)


def _deadline(faults: Faults, new: Obj, old: Obj) -> bool:
    """A deadline may be set, and be brought forward."""
    path, now, was = "spec.activeDeadlineSeconds", new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if was is not None and now is None:
        faults.invalid(path, None, "must not update from a positive integer to nil value")
    elif was is not None and now > was:
        faults.invalid(path, now, "must be less than or equal to previous value")
        return False
    return True


def _forget_changeable(wanted: Obj, before: Obj) -> None:
    for spec in (wanted, before):
        for word in ("containers", "initContainers"):
            for container in spec.get(word) or ():
                container.pop("image", None)
        for word in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
            spec.pop(word, None)
        for volume in spec.get("volumes") or ():
            if "ephemeral" in volume:  # one of an earlier version has not got this default
                (volume["ephemeral"].get("volumeClaimTemplate") or {}).setdefault("metadata", {})
    if before.get("terminationGracePeriodSeconds", 0) < 0 and wanted.get("terminationGracePeriodSeconds") == 1:
        del before["terminationGracePeriodSeconds"], wanted["terminationGracePeriodSeconds"]


def _forget_gated(faults: Faults, wanted: Obj, before: Obj) -> None:
    """While gated, a pod's node selector may get more demanding."""
    was, now = before.pop("nodeSelector", None) or {}, wanted.pop("nodeSelector", None) or {}
    if was | now != now or any(now[k] != v for k, v in was.items() if k in now):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        faults.invalid("spec.nodeSelector", now, detail)


def at_creation(faults: Faults, spec: Obj) -> None:
    """Fields of a new pod that earlier versions did not look at: the pods that they stored can still change."""
    _dns(faults, spec)
    _override(faults, spec)
    faults.optional("spec", spec, dns_label, "subdomain")
    for path, alias in items(spec, "hostAliases", "spec."):
        faults.check(f"{path}.ip", alias.get("ip", ""), pod_address)
        for index, name in enumerate(alias.get("hostnames") or ()):
            faults.check(f"{path}.hostnames[{index}]", name, dns_subdomain)
    if (system := spec.get("os")) is not None:
        if not system.get("name"):
            faults.required("spec.os.name")
        else:
            faults.one_of("spec.os", system["name"], _SYSTEMS)
    for word in ("initContainers", "containers"):
        for path, container in items(spec, word, "spec."):
            if container.get("restartPolicy"):
                faults.one_of(f"{path}.restartPolicy", container["restartPolicy"], sorted(_RESTART_POLICIES))


def _dns(faults: Faults, spec: Obj) -> None:
    config, path = spec.get("dnsConfig"), "spec.dnsConfig"
    if spec.get("dnsPolicy") == "None":
        if config is None:
            return faults.required(path, "must provide `dnsConfig` when `dnsPolicy` is None")
        if not config.get("nameservers"):
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return faults.required(f"{path}.nameservers", detail)
    return _dns_config(faults, config or {}, path)


def _dns_config(faults: Faults, config: Obj, path: str) -> None:
    servers, searches = config.get("nameservers") or (), config.get("searches") or ()
    if len(servers) > _NAMESERVERS:
        faults.invalid(f"{path}.nameservers", servers, f"must not have more than {_NAMESERVERS} nameservers")
    for index, server in enumerate(servers):
        faults.check(f"{path}.nameservers[{index}]", server, pod_address)
    if len(searches) > _SEARCHES:
        faults.invalid(f"{path}.searches", searches, f"must not have more than {_SEARCHES} search paths")
    if len(" ".join(searches)) > _SEARCH_CHARACTERS:
        detail = f"must not have more than {_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        faults.invalid(f"{path}.searches", searches, detail)
    for index, search in enumerate(searches):
        if search != ".":
            faults.check(f"{path}.searches[{index}]", search.removesuffix("."), _search_domain)
    for here, option in items(config, "options", f"{path}."):
        if not option.get("name"):
            faults.required(here, "must not be empty")


def _override(faults: Faults, spec: Obj) -> None:
    name, path = spec.get("hostnameOverride"), "spec.hostnameOverride"
    if name is None:
        return
    for word in ("setHostnameAsFQDN", "hostNetwork"):
        if spec.get(word):
            faults.forbidden(path, f"may not be specified when {word} is true")
    if len(name) > _LONGEST_NAME:
        faults.too_long(path, _LONGEST_NAME)
    faults.check(path, name, dns_subdomain)
