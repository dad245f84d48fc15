"""Validation of requests for certificates and of trust bundles (pkg/apis/certificates/validation)."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_label, dns_subdomain, kind_rules, name_rule, path_segment

_USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment",
    "decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel",
    "ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime",
    "server auth", "signing", "timestamping",
)  # fmt: skip
DECIDED = ("Approved", "Denied")
_POD_STATES = ("Denied", "Failed", "Issued")
_SHORTEST = 600
CERTIFICATE_SECONDS = (3600, 91 * 86400)
"""Shortest and longest life of a pod's certificate that may be asked for."""
_MAX_BUNDLE = 1 << 20
_signer_path = name_rule(
    506, "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", "must be a name without slashes", "client-signer"
)


def signer_name(name: str) -> Sequence[str]:
    """Fault of a signer's name: `example.com/name`."""
    domain, slash, tail = name.partition("/")
    if not slash or "/" in tail:
        return ("must be a fully qualified domain and path of the form 'example.com/signer-name'",)
    if "." not in domain:
        return ("should be a domain with at least two segments separated by dots", *dns_subdomain(domain))
    return (*dns_subdomain(domain), *_signer_path(tail))


@kind_rules(path_segment)
def signing_request(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CertificateSigningRequest: what is asked never changes; what is decided is not taken back."""
    spec = new.get("spec") or {}
    _decided(faults, new, old)
    if old is not None:
        faults.immutable("spec", spec, old.get("spec") or {})
        return
    faults.name("spec.signerName", spec.get("signerName"), signer_name)
    _request(faults, spec.get("request", ""))
    if not spec.get("usages"):
        faults.required("spec.usages")
    for path, usage in items(spec, "usages", "spec."):
        faults.one_of(path, usage, _USAGES)
    if spec.get("expirationSeconds", _SHORTEST) < _SHORTEST:
        detail = "may not specify a duration less than 600 seconds (10 minutes)"
        faults.invalid("spec.expirationSeconds", spec["expirationSeconds"], detail)


def _decided(faults: Faults, new: Obj, old: Obj | None) -> None:
    conditions = (new.get("status") or {}).get("conditions") or []
    types = Counter(c.get("type", "") for c in conditions)
    for path, condition in items(new.get("status") or {}, "conditions", "status."):
        faults.given(path, condition, "type")
        faults.one_of(f"{path}.status", condition.get("status", ""), ("False", "True", "Unknown"))
        if condition.get("type") in (*DECIDED, "Failed") and condition.get("status") != "True":
            faults.not_supported(f"{path}.status", condition.get("status", ""), ("True",))
    if set(DECIDED) <= types.keys():
        faults.invalid("status.conditions", "Denied", "Approved and Denied conditions are mutually exclusive")
    for word in (word for word, number in types.items() if number > 1):
        faults.duplicate("status.conditions", word)
    for condition in ((old or {}).get("status") or {}).get("conditions") or ():
        if condition.get("type") in (*DECIDED, "Failed") and condition.get("type") not in types:
            faults.forbidden("status.conditions", f"{condition['type']} conditions may not be removed")


def _request(faults: Faults, text: str) -> None:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    data = base64.b64decode(text)
    try:
        if not x509.load_pem_x509_csr(data).is_signature_valid:
            faults.invalid("spec.request", text[:40], "its signature does not match its key")
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        faults.invalid("spec.request", text[:40], "PEM block type must be CERTIFICATE REQUEST, with a PKCS#10 request")


@kind_rules(path_segment)
def trust_bundle(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ClusterTrustBundle: certificates in PEM; one of a signer has the signer's name in its own."""
    spec, name = new.get("spec") or {}, new["metadata"].get("name", "")
    signer = spec.get("signerName", "")
    if old is not None:
        faults.immutable("spec.signerName", signer, (old.get("spec") or {}).get("signerName", ""))
    if signer:
        prefix = signer.replace("/", ":") + ":"
        faults.check("spec.signerName", signer, signer_name)
        if not name.startswith(prefix):
            faults.invalid(
                "metadata.name", name, f"ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
            )
        else:
            faults.check("metadata.name", name.removeprefix(prefix), dns_subdomain)
    elif ":" in name:
        faults.invalid("metadata.name", name, 'ClusterTrustBundle without signer name must not have ":" in its name')
    else:
        faults.check("metadata.name", name, dns_subdomain)
    text = spec.get("trustBundle", "")
    if len(text.encode()) > _MAX_BUNDLE:
        faults.too_long("spec.trustBundle", _MAX_BUNDLE)
    elif old is None or text != (old.get("spec") or {}).get("trustBundle"):
        _bundle(faults, text)


def _bundle(faults: Faults, text: str) -> None:
    from cryptography import x509

    path = "spec.trustBundle"
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except (ValueError, TypeError):
        faults.invalid(path, "<value omitted>", "at least one trust anchor must be provided, each a certificate in PEM")
        return
    if len(set(found)) < len(found):
        faults.invalid(path, "<value omitted>", "duplicate trust anchor")


@kind_rules()
def pod_certificate_request(faults: Faults, new: Obj, old: Obj | None) -> None:
    """PodCertificateRequest: what is asked never changes, and there is one answer."""
    spec = new.get("spec") or {}
    if old is not None:
        faults.immutable("spec", spec, old.get("spec") or {})
        _answered(faults, new.get("status") or {}, old.get("status") or {})
        return
    faults.name("spec.signerName", spec.get("signerName"), signer_name)
    for word in ("podName", "serviceAccountName", "nodeName"):
        faults.name(f"spec.{word}", spec.get(word), dns_subdomain)
    faults.given("spec", spec, "podUID", "serviceAccountUID", "nodeUID")
    if not (spec.get("stubPKCS10Request") or spec.get("pkixPublicKey")):
        faults.required("spec.stubPKCS10Request")
    faults.in_range("spec.maxExpirationSeconds", spec.get("maxExpirationSeconds"), *CERTIFICATE_SECONDS)
    for key in spec.get("unverifiedUserAnnotations") or {}:
        faults.check("spec.unverifiedUserAnnotations", key.rpartition("/")[2], dns_label)


@kind_rules()
def certificate_request(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CertificateRequest of cert-manager: what is asked never changes."""
    spec = new.get("spec") or {}
    if old is not None:
        faults.immutable("spec", spec, old.get("spec") or {})
        return
    _request(faults, spec.get("request", ""))
    faults.given("spec.issuerRef", spec.get("issuerRef") or {}, "name")
    for path, usage in items(spec, "usages", "spec."):
        faults.one_of(path, usage, _USAGES)


def _answered(faults: Faults, status: Obj, before: Obj) -> None:
    path, final = "status.conditions", [c for c in status.get("conditions") or () if c.get("type") in _POD_STATES]
    for condition in status.get("conditions") or ():
        faults.one_of(f"{path}.type", condition.get("type"), _POD_STATES)
    if len(final) > 1:
        faults.invalid(
            path,
            [c.get("type") for c in final],
            'there may be at most one condition with type "Issued", "Denied", or "Failed"',
        )
    if any(c.get("type") in _POD_STATES for c in before.get("conditions") or ()):
        faults.immutable("status", status, before)
    elif status.get("certificateChain") and not any(c.get("type") == "Issued" for c in final):
        faults.invalid(
            "status.certificateChain", "<value omitted>", 'must be empty without a condition of type "Issued"'
        )
