"""Rows of certificates.k8s.io, and of cert-manager's requests. Other programs act on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.certificates import admission, defaults
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import OWN_STATUS, in_spec, row
from tonnage_box.apiserver.kinds.shared.strategy import without_status
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.certificates import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.certificates.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.certificates.validation")

ROWS: tuple[Resource, ...] = (
    row(
        kinds.SIGNING_REQUESTS,
        validation.signing_request,
        columns.SIGNING_REQUEST,
        admit=admission.admit,
        prepare=without_status,
        subresources=frozenset({"approval", "status"}),
        fields=in_spec("signerName"),
    ),
    row(kinds.TRUST_BUNDLES, validation.trust_bundle, columns.TRUST_BUNDLE, fields=in_spec("signerName")),
    row(
        kinds.POD_CERTIFICATE_REQUESTS,
        validation.pod_certificate_request,
        columns.POD_CERTIFICATE_REQUEST,
        defaults.pod_certificate_request,
        fields=in_spec("signerName", "podName", "nodeName"),
        **OWN_STATUS,
    ),
    row(
        kinds.CERTIFICATE_REQUESTS,
        validation.certificate_request,
        columns.CERTIFICATE_REQUEST,
        generation=1,
        **OWN_STATUS,
    ),
)
