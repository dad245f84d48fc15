"""Signs certificates for kubelets: PodCertificateRequests of pods with a `podCertificate` volume (KEP-4317).

A pod gets what its own text asks for, within the issuer's policy, also if no kubelet made the request: RBAC may let
others than kubelets create them. Denied is final, so only what no later attempt could repair is denied. Watched:
requests, where the server has them. Pods are read live.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiNotFoundError, InvalidError, UnavailableError
from tonnage.controller.config import LoopContext, SigningConfig
from tonnage.csi.inline.cert.attributes import DRIVER, OURS
from tonnage.csi.inline.cert.authority import PodKey, is_pod_key, read_certificates
from tonnage.csi.inline.cert.issuers.base import split_roots
from tonnage.csi.inline.cert.issuers.remote import SIGNER_DOMAIN
from tonnage.csi.inline.cert.policy import NamePolicy, check_policy
from tonnage.csi.inline.cert.variables import inline_pod
from tonnage.csi.inline.cert.wanted import WantedCertificate, wanted_certificate
from tonnage.kubernetes.api.certificate import PodCertificateRequest, PodCertificateRequestSpec
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import POD_CERTIFICATE_REQUESTS, PODS
from tonnage.kubernetes.api.pods import Pod, PodCertificateProjection
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import patch_object

FINAL = frozenset({"Issued", "Denied", "Failed"})
NOT_ALLOWED, BAD_KEY, BAD_ANNOTATIONS = "NotAllowed", "UnsupportedKeyType", "InvalidUnverifiedUserAnnotations"
_DAY, _HOUR = 86400, 3600.0
_BACKDATED = 120.0
"""Seconds before now at which certificates begin: the API server rejects more than 300."""
_NAMES = ("dns-names", "uri-sans", "ip-sans", "common-name", "literal-subject")
_TEXTS = frozenset(
    (*_NAMES, "organizations", "organizationalunits", "countries", "provinces", "localities", "streetaddresses",
     "postalcodes", "serialnumber", "key-usages")
)  # fmt: skip
"""Attributes that a pod may give as annotations of its request; the kubelet makes the key and the files."""


class PodCertificateRejectedError(InvalidError):
    """A request that is denied for good. reason: of the condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PodCertificateSigner(Reconciler[str]):
    """Signs or denies requests for our issuers."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("pod certificate signing")
        self._client, self._clock = context.client, context.clock
        self._issuers = context.config.certificate_issuers
        self._watched = context.informers.of(POD_CERTIFICATE_REQUESTS, optional=True)
        self._requests = self.watch(self._watched, self._changed)

    async def reconcile(self, key: str) -> None:
        """Sign or deny one request. Idempotent. Raises: ApiError; UnavailableError without the authority."""
        request = self._requests.get(key)
        if request is None or not self._is_open(request):
            return
        issuer = request.spec.signer_name.removeprefix(SIGNER_DOMAIN)
        signing = self._issuers[issuer]
        try:
            wanted, public = check_pod_request(request, await self._pod_of(request), signing.policy)
        except PodCertificateRejectedError as error:
            await self._write(request, self._condition("Denied", error.reason, str(error)))
            return
        chain = await self._sign(signing, wanted, public)
        why = "the pod's own text asks for it, and the issuer's policy allows it"
        await self._write(request, self._condition("Issued", "PodVolume", why), issued_status(issuer, chain))

    async def _sign(self, signing: SigningConfig, wanted: WantedCertificate, public: PodKey) -> bytes:
        """Return the chain without its root. Raises: UnavailableError, ApiError."""
        try:
            sign = partial((await signing.load()).sign, backdated=_BACKDATED)
            signed = await asyncio.to_thread(sign, public, wanted, self._clock.time())
        except InvalidError as error:  # the authority's fault: a new Secret repairs it
            raise UnavailableError(str(error)) from None
        return split_roots(signed).chain

    async def _pod_of(self, request: PodCertificateRequest) -> Pod:
        namespace, name = request.metadata.namespace, request.spec.pod_name
        try:
            return await self._client.get(PODS, name, namespace)
        except ApiNotFoundError:
            raise PodCertificateRejectedError(NOT_ALLOWED, f"pod {namespace}/{name}: does not exist") from None

    async def _write(
        self, request: PodCertificateRequest, condition: Mapping[str, str], more: Mapping[str, str] | None = None
    ) -> None:
        status = {"conditions": [condition], **(more or {})}
        await patch_object(self._client, self._watched.kind, request, {"status": status}, subresource="status")

    def _condition(self, kind: str, reason: str, message: str) -> dict[str, str]:
        now = rfc3339(self._clock.time())
        text = {"reason": reason, "message": message[:1000], "lastTransitionTime": now}
        return {"type": kind, "status": "True", **text}

    def _is_open(self, request: PodCertificateRequest) -> bool:
        domain, issuer = SIGNER_DOMAIN, request.spec.signer_name.removeprefix(SIGNER_DOMAIN)
        ours = request.spec.signer_name.startswith(domain) and issuer in self._issuers
        return ours and not any(one.type in FINAL for one in request.status.conditions)

    def _changed(self, _old: PodCertificateRequest | None, new: PodCertificateRequest | None) -> Iterable[str]:
        return (new.key,) if new is not None and self._is_open(new) else ()


def check_pod_request(request: PodCertificateRequest, pod: Pod, policy: NamePolicy) -> tuple[WantedCertificate, PodKey]:
    """Return what may be signed, and for which key. pod: read live. Raises: PodCertificateRejectedError."""
    spec, account = request.spec, pod.spec.service_account_name or "default"
    for differs, what in (
        (not pod.metadata.uid or spec.pod_uid != pod.metadata.uid, "is another one of that name"),
        (not pod.spec.node_name or spec.node_name != pod.spec.node_name, f"is not on node {spec.node_name[:80]}"),
        (spec.service_account_name != account, f"has not the service account {spec.service_account_name[:80]}"),
        (pod.terminated, "has ended"),
        (not any(_asks(source, spec) for source in _sources(pod)), "has no such podCertificate volume"),
    ):
        if differs:
            raise PodCertificateRejectedError(NOT_ALLOWED, f"pod {pod.key}: {what}")
    wanted = _wanted(spec, pod, policy)
    try:
        check_policy(wanted, inline_pod(pod), policy)
    except InvalidError as error:
        raise PodCertificateRejectedError(NOT_ALLOWED, str(error)) from None
    return wanted, public_key(spec)


def _sources(pod: Pod) -> Iterator[PodCertificateProjection]:
    for volume in pod.spec.volumes:
        for source in (volume.projected or {}).get("sources") or ():
            if found := source.get("podCertificate"):
                yield convert(found, PodCertificateProjection)


def _asks(source: PodCertificateProjection, spec: PodCertificateRequestSpec) -> bool:
    """Whether a source of a projected volume asks for just this."""
    return (
        source.signer_name == spec.signer_name
        and source.user_annotations == spec.unverified_user_annotations
        and (source.max_expiration_seconds or _DAY) == (spec.max_expiration_seconds or _DAY)
    )


def _wanted(spec: PodCertificateRequestSpec, pod: Pod, policy: NamePolicy) -> WantedCertificate:
    given = {}
    for key, value in spec.unverified_user_annotations.items():
        name = key.removeprefix(f"{DRIVER}/")
        if name == key or name not in _TEXTS:
            known = ", ".join(f"{DRIVER}/{one}" for one in sorted(_TEXTS))
            raise PodCertificateRejectedError(
                BAD_ANNOTATIONS, f"user annotation {key[:80]!r}: unknown; known are {known}"
            )
        given[name] = value
    if not any(given.get(name) for name in _NAMES):
        given["uri-sans"] = f"spiffe://{policy.cluster_domain}/ns/${{POD_NAMESPACE}}/sa/${{SERVICE_ACCOUNT_NAME}}"
    seconds = min(float(spec.max_expiration_seconds or _DAY), policy.longest) - _BACKDATED
    issuer = spec.signer_name.removeprefix(SIGNER_DOMAIN)
    attributes = {**given, "issuer-name": issuer, "duration": f"{int(seconds)}s"}
    try:
        return wanted_certificate(attributes, inline_pod(pod), OURS)
    except InvalidError as error:
        raise PodCertificateRejectedError(BAD_ANNOTATIONS, str(error)) from None


def public_key(spec: PodCertificateRequestSpec) -> PodKey:
    """Return the key of a request. Raises: PodCertificateRejectedError.

    The API server has verified that the kubelet has its private part.
    """
    try:
        if spec.stub_pkcs10_request:
            key: Any = x509.load_der_x509_csr(base64.b64decode(spec.stub_pkcs10_request, validate=True)).public_key()
        else:  # of kubelets of Kubernetes 1.35
            key = load_der_public_key(base64.b64decode(spec.pkix_public_key, validate=True))
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        raise PodCertificateRejectedError(BAD_KEY, "its key cannot be read") from None
    if not is_pod_key(key):
        raise PodCertificateRejectedError(BAD_KEY, "want a key of RSA, ECDSA or Ed25519")
    return key


def issued_status(issuer: str, chain: bytes) -> dict[str, str]:
    """Return the status of a signed request. Raises: UnavailableError for a life that the API server would reject."""
    leaf = read_certificates(chain)[0]
    begin, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    if end - begin < _HOUR:
        raise UnavailableError(f"issuer {issuer}: its own certificate ends in less than an hour; renew it")
    return {
        "certificateChain": chain.decode(),
        "notBefore": rfc3339(begin),
        "notAfter": rfc3339(end),
        "beginRefreshAt": rfc3339(end - (end - begin) / 3),
    }
