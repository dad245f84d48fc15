"""Signs certificates of inline volumes: checks each CertificateSigningRequest of an agent against its pod.

An agent gets only what the text of a pod on its own node says, within the issuer's policy. The authority's key is read
from a mounted Secret for each signature, and no agent can read it. Watched: requests. Pods are read live.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiNotFoundError, InvalidError, UnavailableError
from tonnage.controller.config import LoopContext
from tonnage.csi.inline.cert.attributes import DIALECTS, PKCS12_PASSWORD
from tonnage.csi.inline.cert.authority import public_key_of, read_request
from tonnage.csi.inline.cert.issuers.remote import POD_NAME, POD_NAMESPACE, POD_UID, SIGNER_DOMAIN
from tonnage.csi.inline.cert.policy import NamePolicy, check_policy
from tonnage.csi.inline.cert.variables import inline_pod
from tonnage.csi.inline.cert.wanted import WantedCertificate, difference, wanted_certificate
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.certificate import CertificateSigningRequest
from tonnage.kubernetes.api.kinds import PODS, SIGNING_REQUESTS
from tonnage.kubernetes.api.pods import CSIVolumeSource, Pod
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import patch_object

NODE_NAME = "authentication.kubernetes.io/node-name"
_FINAL = ("Denied", "Failed")


class CertificateSigner(Reconciler[str]):
    """Approves, signs or denies requests for our issuers."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("certificate signing")
        self._client, self._clock = context.client, context.clock
        self._issuers = context.config.certificate_issuers
        self._account = f"system:serviceaccount:{context.config.namespace}:{names.AGENT_ACCOUNT}"
        self._requests = self.watch(context.informers.of(SIGNING_REQUESTS), self._changed)

    async def reconcile(self, key: str) -> None:
        """Decide one request, and sign it. Idempotent. Raises: ApiError; UnavailableError without the authority."""
        request = self._requests.get(key)
        if request is None or not self._is_open(request):
            return
        signing = self._issuers[request.spec.signer_name.removeprefix(SIGNER_DOMAIN)]
        try:
            wanted = check_request(request, await self._pod_of(request), self._account, signing.policy)
        except InvalidError as error:
            await self._reject(request, str(error))
            return
        authority = await signing.load()
        if not request.has("Approved"):
            message = "the pod's own volumeAttributes ask for it, and the issuer's policy allows it"
            request = await self._decide(request, "Approved", "PodAttributes", message)
        asked = read_request(_decoded(request.spec.request))
        try:
            signed = await asyncio.to_thread(authority.sign, public_key_of(asked), wanted, self._clock.time())
        except InvalidError as error:
            raise UnavailableError(str(error)) from None  # the authority's fault: a new Secret repairs it
        status = {"certificate": base64.b64encode(signed).decode()}
        await patch_object(self._client, SIGNING_REQUESTS, request, {"status": status}, subresource="status")

    async def _pod_of(self, request: CertificateSigningRequest) -> Pod:
        notes = request.metadata.annotations
        namespace, name = notes.get(POD_NAMESPACE, ""), notes.get(POD_NAME, "")
        if not names.is_dns_label(namespace) or not names.is_dns_subdomain(name):
            raise InvalidError("the request names no pod")
        try:
            return await self._client.get(PODS, name, namespace)
        except ApiNotFoundError:
            raise InvalidError(f"pod {namespace}/{name}: does not exist") from None

    async def _reject(self, request: CertificateSigningRequest, message: str) -> None:
        """Write that it is denied; what somebody else has approved has failed."""
        kind = "Failed" if request.has("Approved") else "Denied"
        await self._decide(request, kind, "NotAllowed", message)

    async def _decide(
        self, request: CertificateSigningRequest, kind: str, reason: str, message: str
    ) -> CertificateSigningRequest:
        now = rfc3339(self._clock.time())
        new = {"type": kind, "status": "True", "reason": reason, "message": message[:1000], "lastUpdateTime": now}
        conditions: list[dict[str, Any]] = [_plain(one) for one in request.status.conditions]
        body = {"status": {"conditions": [*conditions, new]}}
        where = "status" if kind == "Failed" else "approval"
        return await patch_object(self._client, SIGNING_REQUESTS, request, body, subresource=where)

    def _is_open(self, request: CertificateSigningRequest) -> bool:
        domain, issuer = SIGNER_DOMAIN, request.spec.signer_name.removeprefix(SIGNER_DOMAIN)
        ours = request.spec.signer_name.startswith(domain) and issuer in self._issuers
        return ours and not request.status.certificate and not any(request.has(kind) for kind in _FINAL)

    def _changed(self, _old: CertificateSigningRequest | None, new: CertificateSigningRequest | None) -> Iterable[str]:
        return (new.key,) if new is not None and self._is_open(new) else ()


def check_request(request: CertificateSigningRequest, pod: Pod, account: str, policy: NamePolicy) -> WantedCertificate:
    """Return the certificate that may be signed for a request. pod: read live. Raises: InvalidError that says why not.

    account: the user name of our agents. Their tokens say the node, which the API server writes into the request.
    """
    if request.spec.username != account:
        raise InvalidError("only agents may ask for certificates of pods")
    node = request.spec.extra.get(NODE_NAME, [])
    if len(node) != 1 or not pod.spec.node_name or node[0] != pod.spec.node_name:
        raise InvalidError(f"pod {pod.key}: is not on the node that asks")
    if not pod.metadata.uid or request.metadata.annotations.get(POD_UID) != pod.metadata.uid:
        raise InvalidError(f"pod {pod.key}: is another one of that name")
    if pod.terminated:
        raise InvalidError(f"pod {pod.key}: has ended")
    wanted = _matching(request, pod)
    check_policy(wanted, inline_pod(pod), policy)
    return wanted


def _matching(request: CertificateSigningRequest, pod: Pod) -> WantedCertificate:
    """Return the certificate of the volume whose attributes mean exactly this request. Raises: InvalidError."""
    asked = read_request(_decoded(request.spec.request))
    why = "it has no inline volume of the driver with valid ones"
    for wanted in _certificates(pod):
        why = difference(asked, wanted)
        if not why and set(request.spec.usages) != set(wanted.usages):
            why = "the request has other usages"
        if not why and request.spec.expiration_seconds != int(wanted.seconds):
            why = "the request has another duration"
        if not why and wanted.issuer.name != request.spec.signer_name.removeprefix(SIGNER_DOMAIN):
            why = "the request is for another issuer"
        if not why:
            return wanted
    raise InvalidError(f"pod {pod.key}: its volumeAttributes do not ask for this: {why}")


def _certificates(pod: Pod) -> Iterator[WantedCertificate]:
    for volume in pod.spec.volumes:
        if volume.csi is not None and volume.csi.driver in DIALECTS:
            dialect = DIALECTS[volume.csi.driver]
            with suppress(InvalidError):  # the other volumes of the pod are none of its faults
                yield wanted_certificate(_with_password(volume.csi, dialect.prefix), inline_pod(pod), dialect)


def _with_password(volume: CSIVolumeSource, prefix: str) -> dict[str, str]:
    """Return the attributes; a password in a Secret is none of the controller's business, but it must be set."""
    given = volume.volume_attributes
    uses = {f"{prefix}{word}" for word in ("pkcs12-enable", "truststore-file")}
    if volume.node_publish_secret_ref is None or not given.keys() & uses:
        return given
    return {f"{prefix}{PKCS12_PASSWORD}": "-", **given}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError("the request cannot be read") from None


def _plain(condition: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(condition))
