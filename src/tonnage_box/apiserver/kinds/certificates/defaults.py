"""Defaulting of PodCertificateRequest. Pure functions of normalized dicts."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj


def pod_certificate_request(obj: Obj) -> None:
    """PodCertificateRequest: a day at most."""
    obj.setdefault("spec", {}).setdefault("maxExpirationSeconds", 86400)
