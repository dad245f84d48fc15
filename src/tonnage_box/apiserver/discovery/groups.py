"""API discovery: groups, versions and resources at /api and /apis, plain and aggregated (v2)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage_box.apiserver.request.resource import Resource

Obj = dict[str, Any]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_STATUS_VERBS = ("get", "patch", "update")
# subresource -> (group, version, kind that is sent, verbs); kind "" is the parent's own.
SUBRESOURCES: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "status": ("", "", "", _STATUS_VERBS),
    "approval": ("", "", "", _STATUS_VERBS),
    "finalize": ("", "", "", ("update",)),
    "binding": ("", "", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
    "log": ("", "", "", ("get",)),
    "exec": ("", "", "PodExecOptions", ("create", "get")),
    "attach": ("", "", "PodAttachOptions", ("create", "get")),
    "ephemeralcontainers": ("", "", "", _STATUS_VERBS),
    "scale": ("autoscaling", "v1", "Scale", _STATUS_VERBS),
}


def groups(resources: Iterable[Resource]) -> dict[str, list[Resource]]:
    """Resources by group, core ("") first, in the order of the table."""
    found: dict[str, list[Resource]] = {"": []}
    for resource in resources:
        found.setdefault(resource.kind.group, []).append(resource)
    return found


def api_versions() -> Obj:
    """/api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def api_group(group: str, resources: Iterable[Resource]) -> Obj:
    """/apis/<group>."""
    versions = list(dict.fromkeys(r.kind.version for r in resources))
    shown = [{"groupVersion": f"{group}/{v}", "version": v} for v in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": shown, "preferredVersion": shown[0]}


def api_group_list(resources: Iterable[Resource]) -> Obj:
    """/apis."""
    named = {name: rows for name, rows in groups(resources).items() if name}
    shown = [{k: v for k, v in api_group(n, r).items() if k not in ("kind", "apiVersion")} for n, r in named.items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": shown}


def api_resource_list(group_version: str, resources: Iterable[Resource]) -> Obj:
    """/api/v1 and /apis/<group>/<version>: resources and, as entries of their own, their subresources."""
    shown = []
    for resource in sorted(resources, key=lambda r: r.kind.plural):
        shown.append(_api_resource(resource))
        shown += [_api_subresource(resource, name) for name in sorted(resource.subresources)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": shown}


def _other_names(resource: Resource) -> Obj:
    """Members that are left out where they are empty."""
    named = {"shortNames": list(resource.kind.short), "categories": list(resource.categories)}
    return {word: value for word, value in named.items() if value}


def _api_resource(resource: Resource) -> Obj:
    kind = resource.kind
    answer: Obj = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": sorted(resource.verbs),
    }
    answer |= _other_names(resource)
    if "get" in resource.verbs:
        digest = hashlib.sha256(f"{kind.group}/{kind.version}/{kind.kind}".encode()).digest()[:8]
        answer["storageVersionHash"] = base64.b64encode(digest).decode()
    return answer


def _api_subresource(resource: Resource, name: str) -> Obj:
    group, version, kind, verbs = SUBRESOURCES[name]
    answer: Obj = {
        "name": f"{resource.kind.plural}/{name}",
        "singularName": "",
        "namespaced": resource.kind.namespaced,
        "kind": kind or resource.kind.kind,
        "verbs": list(verbs),
    }
    if group:
        answer |= {"group": group, "version": version}
    return answer


def aggregated(resources: Iterable[Resource], *, core: bool) -> Obj:
    """The aggregated form of /api (core=True) or /apis: everything in one answer, so that kubectl asks twice."""
    items = []
    for group, rows in groups(resources).items():
        if bool(group) == core:
            continue
        versions: dict[str, list[Resource]] = {}
        for resource in rows:
            versions.setdefault(resource.kind.version, []).append(resource)
        shown = [
            {"version": v, "freshness": "Current", "resources": [_discovered(r) for r in found]}
            for v, found in versions.items()
        ]
        items.append({"metadata": {"name": group} if group else {"creationTimestamp": None}, "versions": shown})
    head = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}
    return head | {"metadata": {}, "items": items}


def _discovered(resource: Resource) -> Obj:
    kind = resource.kind
    answer: Obj = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": sorted(resource.verbs),
    }
    answer |= _other_names(resource)
    if resource.subresources:
        answer["subresources"] = [_discovered_subresource(resource, name) for name in sorted(resource.subresources)]
    return answer


def _discovered_subresource(resource: Resource, name: str) -> Obj:
    group, version, kind, verbs = SUBRESOURCES[name]
    response = {
        "group": group or ("" if kind else resource.kind.group),
        "version": version or ("v1" if kind else resource.kind.version),
        "kind": kind or resource.kind.kind,
    }
    return {"subresource": name, "responseKind": response, "verbs": list(verbs)}
