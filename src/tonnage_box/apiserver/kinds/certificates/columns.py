"""Columns of certificates.k8s.io (pkg/printers/internalversion), and of cert-manager's CertificateRequest."""

from __future__ import annotations

from collections.abc import Callable

from tonnage_box.apiserver.printers.cells import shown_labels
from tonnage_box.apiserver.printers.table import AGE, NAME, Obj, at, dig, duration, of


def _conditions(obj: Obj) -> list[str]:
    return [c.get("type", "") for c in dig(obj, "status", "conditions") or ()]


def _request_state(obj: Obj) -> str:
    """`Approved,Issued` and its like."""
    found = _conditions(obj)
    first = next((word for word in ("Denied", "Approved") if word in found), "Pending")
    issued = ["Issued"] if dig(obj, "status", "certificate") else []
    return ",".join([first, *(["Failed"] if "Failed" in found else []), *issued])


def _requested(obj: Obj) -> str:
    seconds = dig(obj, "spec", "expirationSeconds")
    return "<none>" if seconds is None else duration(seconds)


SIGNING_REQUEST = (
    NAME,
    AGE,
    at("SignerName", "spec", "signerName", empty="<none>", text="Who is to sign it."),
    at("Requestor", "spec", "username", text="Who asked for it."),
    of("RequestedDuration", _requested),
    of("Condition", _request_state, text="Pending, Approved, Denied, Failed, Issued."),
)
TRUST_BUNDLE = (NAME, at("SignerName", "spec", "signerName", empty="<none>"))


def _pod_request_state(obj: Obj) -> str:
    return next((word for word in reversed(_conditions(obj)) if word in ("Issued", "Denied", "Failed")), "Pending")


POD_CERTIFICATE_REQUEST = (
    NAME,
    at("PodName", "spec", "podName"),
    at("ServiceAccountName", "spec", "serviceAccountName"),
    at("NodeName", "spec", "nodeName"),
    at("SignerName", "spec", "signerName"),
    of("State", _pod_request_state, text="Pending, Issued, Denied or Failed."),
    of("UnverifiedUserAnnotations", lambda o: shown_labels(dig(o, "spec", "unverifiedUserAnnotations")), 1),
)


def _has(word: str) -> Callable[[Obj], str]:
    def status(obj: Obj) -> str:
        return next((c.get("status", "") for c in dig(obj, "status", "conditions") or () if c.get("type") == word), "")

    return status


CERTIFICATE_REQUEST = (
    NAME,
    of("Approved", _has("Approved")),
    of("Denied", _has("Denied")),
    of("Ready", _has("Ready")),
    at("Issuer", "spec", "issuerRef", "name"),
    at("Requester", "spec", "username"),
    AGE,
)
