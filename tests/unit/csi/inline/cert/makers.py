"""Pods, attributes and requests for tests of certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tonnage.csi.inline.base import FillRequest, InlinePod
from tonnage.csi.inline.cert.attributes import COMPATIBLE
from tonnage.csi.inline.cert.issuers.base import IssueRequest
from tonnage.csi.inline.cert.keys import make_key
from tonnage.csi.inline.cert.wanted import signing_request, wanted_certificate

UID = "0d9a1b6c-1111-4222-8333-444455556666"
NAMES = {
    "issuer-name": "ca-issuer",
    "dns-names": "my-service.sandbox.svc.cluster.local",
    "uri-sans": "spiffe://cluster.local/ns/${POD_NAMESPACE}/sa/$SERVICE_ACCOUNT_NAME/pod/${POD_UID}",
}


def pod(**more: Any) -> InlinePod:
    """The pod of these tests."""
    return InlinePod("sandbox", "my-csi-app-x", UID, "default", **more)


def compatible(**more: str) -> dict[str, str]:
    """Attributes under cert-manager's name; `_` of a keyword is `-`."""
    values = {**NAMES, **{key.replace("_", "-"): value for key, value in more.items()}}
    return {f"{COMPATIBLE.prefix}{key}": value for key, value in values.items()}


def ours(**more: str) -> dict[str, str]:
    """Attributes under our own name."""
    return {**NAMES, **{key.replace("_", "-"): value for key, value in more.items()}}


def fill(folder: Path, attributes: dict[str, str], **more: Any) -> FillRequest:
    """A request for content."""
    return FillRequest(more.pop("pod", pod()), attributes, more.pop("read_only", True), "csi-1", folder, **more)


def issue_request(attributes: dict[str, str], name: str = "0b1e") -> IssueRequest:
    """A request to an issuer with a new key."""
    wanted = wanted_certificate(attributes, pod(), COMPATIBLE)
    return IssueRequest(name, signing_request(wanted, make_key("ECDSA", 256)), wanted, pod(), "csi-1")
