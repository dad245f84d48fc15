"""Rows of the kinds that the box stores and does not act on, and of those that other programs act on.

A write of the first is answered with a warning that says so, so that charts install and no one waits for an effect.
"""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import PartialObject
from tonnage_box.apiserver.admission import plugins, service, signing
from tonnage_box.apiserver.printers import certificate, network
from tonnage_box.apiserver.printers.table import dig
from tonnage_box.apiserver.registry import network_defaults as defaults
from tonnage_box.apiserver.registry.strategy import without_status
from tonnage_box.apiserver.request import autoscaler_versions
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation import certificates, scaling
from tonnage_box.apiserver.validation import network as rules

_NETWORK = "containers share the machine's network: connect to 127.0.0.1 and the container's port"
_STATUS: dict[str, Any] = {"subresources": frozenset({"status"}), "prepare": without_status}
AUTOSCALERS_V1 = Kind(
    "autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", PartialObject, short=("hpa",)
)


def _stored(kind: Kind[Any], why: str, **hooks: Any) -> Resource:
    """A row of a kind without effect."""
    notice = f"{kind.qualified}: stored, not acted on: {why}"
    if kind.namespaced:
        hooks.setdefault("admit", plugins.plain(kind))
    return Resource(kind, notice=notice, **hooks)


def _fields(obj: Obj, *words: str) -> dict[str, str]:
    return {f"spec.{word}": str(dig(obj, "spec", word) or "") for word in words}


_SERVICES = _stored(
    kinds.SERVICES,
    _NETWORK,
    validate=rules.service,
    columns=network.SERVICE,
    default=defaults.service,
    admit=service.admit,
    subresources=frozenset({"status"}),
    prepare=service.prepare,
    categories=("all",),
    fields=lambda o: _fields(o, "clusterIP", "type"),
)
_AUTOSCALING = "the box measures no load, so the number of pods stays"
_AUTOSCALERS: dict[str, Any] = _STATUS | {"validate": scaling.autoscaler, "categories": ("all",)}
_CERTIFICATES = (
    Resource(
        kinds.SIGNING_REQUESTS,
        validate=certificates.signing_request,
        columns=certificate.SIGNING_REQUEST,
        admit=signing.admit,
        prepare=without_status,
        subresources=frozenset({"approval", "status"}),
        fields=lambda o: _fields(o, "signerName"),
    ),
    Resource(
        kinds.TRUST_BUNDLES,
        validate=certificates.trust_bundle,
        columns=certificate.TRUST_BUNDLE,
        fields=lambda o: _fields(o, "signerName"),
    ),
    Resource(
        kinds.POD_CERTIFICATE_REQUESTS,
        validate=certificates.pod_certificate_request,
        columns=certificate.POD_CERTIFICATE_REQUEST,
        default=defaults.pod_certificate_request,
        admit=plugins.plain(kinds.POD_CERTIFICATE_REQUESTS),
        fields=lambda o: _fields(o, "signerName", "podName", "nodeName"),
        **_STATUS,
    ),
    Resource(
        kinds.CERTIFICATE_REQUESTS,
        validate=certificates.certificate_request,
        columns=certificate.CERTIFICATE_REQUEST,
        **_STATUS,
    ),
)
ROWS: tuple[Resource, ...] = (
    _SERVICES,
    _stored(
        kinds.ENDPOINTS,
        _NETWORK,
        validate=rules.endpoints,
        columns=network.ENDPOINTS,
        default=defaults.endpoints,
    ),
    _stored(
        kinds.ENDPOINT_SLICES,
        _NETWORK,
        validate=rules.endpoint_slice,
        columns=network.ENDPOINT_SLICE,
        default=defaults.endpoint_slice,
    ),
    _stored(
        kinds.INGRESSES,
        "nothing here serves its routes",
        validate=rules.ingress,
        columns=network.INGRESS,
        default=defaults.ingress,
        **_STATUS,
    ),
    _stored(
        kinds.INGRESS_CLASSES,
        "nothing here serves Ingresses",
        validate=rules.ingress_class,
        columns=network.INGRESS_CLASS,
        default=defaults.ingress_class,
    ),
    _stored(
        kinds.NETWORK_POLICIES,
        "containers share the machine's network, and nothing filters it",
        validate=rules.network_policy,
        columns=network.NETWORK_POLICY,
        default=defaults.network_policy,
    ),
    _stored(kinds.AUTOSCALERS, _AUTOSCALING, columns=network.AUTOSCALER, default=defaults.autoscaler, **_AUTOSCALERS),
    _stored(
        AUTOSCALERS_V1,
        _AUTOSCALING,
        columns=network.AUTOSCALER_V1,
        default=defaults.autoscaler_v1,
        stored_as=kinds.AUTOSCALERS.key,
        inward=autoscaler_versions.inward,
        outward=autoscaler_versions.outward,
        **(_AUTOSCALERS | {"admit": plugins.plain(kinds.AUTOSCALERS)}),
    ),
    _stored(
        kinds.REPLICATION_CONTROLLERS,
        "use a Deployment or a ReplicaSet",
        validate=scaling.replication_controller,
        columns=network.REPLICATION_CONTROLLER,
        default=defaults.replication_controller,
        categories=("all",),
        **_STATUS,
    ),
    _stored(
        kinds.RUNTIME_CLASSES,
        "all pods run in the same way; its overhead and its scheduling are the pods'",
        validate=scaling.runtime_class,
        columns=network.RUNTIME_CLASS,
    ),
    Resource(
        kinds.POD_TEMPLATES,
        validate=scaling.pod_template,
        columns=network.POD_TEMPLATE,
        default=defaults.pod_template,
        admit=plugins.plain(kinds.POD_TEMPLATES),
    ),
    Resource(
        kinds.ATTRIBUTES_CLASSES,
        validate=scaling.attributes_class,
        columns=network.ATTRIBUTES_CLASS,
        admit=plugins.attributes_class,
    ),
    *_CERTIFICATES,
)
