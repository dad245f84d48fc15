"""Issuers that are asked through the Kubernetes API: CertificateSigningRequest, and cert-manager's CertificateRequest.

Used by agents, which hold no authority's key. The object's name was recorded before it is created, so a restarted agent
finds its own request again and asks once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError, UnavailableError
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError, IssuedCertificate, IssueRequest, split_roots
from tonnage.kubernetes.api.certificate import CertificateRequest, CertificateSigningRequest
from tonnage.kubernetes.api.kinds import CERTIFICATE_REQUESTS, CONFIG_MAPS, SIGNING_REQUESTS
from tonnage.kubernetes.api.meta import Condition
from tonnage.kubernetes.client.client import Client

SIGNER_DOMAIN = "tonnage.dev/"
ROOTS = "tonnage-issuers"
"""Name of the ConfigMap, in the agents' namespace, with the roots of the controller's issuers by name."""
POD_NAMESPACE, POD_NAME, POD_UID = (f"tonnage.dev/pod-{word}" for word in ("namespace", "name", "uid"))
PATIENCE = 45.0
"""Seconds to wait in one call, the default: the kubelet ends it after 120."""
_PUBLISHED_FOR = 300.0
_POLL, _LONGEST_POLL = 0.05, 2.0
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class PublishedMap:
    """The roots of the controller's issuers, from a ConfigMap that is read at most once in five minutes."""

    def __init__(self, client: Client, namespace: str, clock: Clock) -> None:
        self._client, self._namespace, self._clock = client, namespace, clock
        self._found: dict[str, str] = {}
        self._until = 0.0
        self._reads = asyncio.Lock()

    async def roots(self, issuer: str) -> bytes:
        """Return the roots of an issuer as PEM, empty if they are not published. Does not raise."""
        async with self._reads:
            if self._clock.monotonic() >= self._until:
                self._until = self._clock.monotonic() + _PUBLISHED_FOR
                with suppress(ApiError, UnavailableError):  # what was read before is good enough
                    self._found = (await self._client.get(CONFIG_MAPS, ROOTS, self._namespace)).data
        return self._found.get(issuer, "").encode()


class SigningRequestIssuer:
    """Asks for a signature by CertificateSigningRequest.

    signer: its name, as `tonnage.dev/internal`. published: the roots of the controller's signers, None for others.
    """

    def __init__(
        self,
        client: Client,
        signer: str,
        clock: Clock,
        *,
        published: PublishedMap | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._client, self._signer, self._clock, self._patience = client, signer, clock, patience
        self._published = published

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        name = f"tonnage-{request.name}"

        async def find() -> IssuedCertificate | str:
            found = await self._client.get(SIGNING_REQUESTS, name)
            for bad in ("Denied", "Failed"):
                _reject(self._signer, found.status.conditions, bad)
            if found.status.certificate:
                return split_roots(decode(found.status.certificate))
            return "approved, not signed yet" if found.has("Approved") else "not approved yet"

        async def create() -> CertificateSigningRequest:
            return await self._client.create(SIGNING_REQUESTS, signing_body(name, self._signer, request))

        patience = self._patience * request.waits
        return await _wait(f"signer {self._signer}: request {name}", create, find, self._clock, patience)

    async def discard(self, name: str, namespace: str) -> None:
        """Do nothing: the cluster removes old requests by itself."""

    async def roots(self) -> bytes:
        if self._published is None:
            return b""
        return await self._published.roots(self._signer.removeprefix(SIGNER_DOMAIN))


class CertManagerIssuer:
    """Asks cert-manager by CertificateRequest, with the names, labels and owner that its own CSI driver gives."""

    def __init__(self, client: Client, node: str, clock: Clock, *, patience: float = PATIENCE) -> None:
        self._client, self._node, self._clock, self._patience = client, node, clock, patience

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        what = f"issuer {request.wanted.issuer.name}"
        namespace = request.pod.namespace

        async def find() -> IssuedCertificate | str:
            found = await self._client.get(CERTIFICATE_REQUESTS, request.name, namespace)
            for bad in ("Denied", "InvalidRequest"):
                _reject(what, found.status.conditions, bad)
            ready = next((one for one in found.status.conditions if one.type == "Ready"), Condition())
            if ready.reason == "Failed":
                raise CertificateDeniedError(f"{what}: the request has failed: {ready.message[:500]}")
            if ready.status == "True" and found.status.certificate:
                roots = decode(found.status.ca) if found.status.ca else b""
                return IssuedCertificate(decode(found.status.certificate), roots)
            return ready.message[:500] or "no answer yet"

        async def create() -> CertificateRequest:
            body = cert_manager_body(request, self._node)
            return await self._client.create(CERTIFICATE_REQUESTS, body, namespace)

        patience = self._patience * request.waits
        return await _wait(f"{what}: request {namespace}/{request.name}", create, find, self._clock, patience)

    async def discard(self, name: str, namespace: str) -> None:
        with suppress(ApiNotFoundError):
            await self._client.delete(CERTIFICATE_REQUESTS, name, namespace)

    async def roots(self) -> bytes:
        """Return nothing: an answer has the roots of its own time."""
        return b""


def signing_body(name: str, signer: str, request: IssueRequest) -> dict[str, Any]:
    """Return the CertificateSigningRequest for a volume."""
    pod = request.pod
    notes = {POD_NAMESPACE: pod.namespace, POD_NAME: pod.name, POD_UID: pod.uid}
    spec = {
        "request": base64.b64encode(request.request).decode(),
        "signerName": signer,
        "usages": list(request.wanted.usages),
        "expirationSeconds": int(request.wanted.seconds),
    }
    return {"metadata": {"name": name, "annotations": notes}, "spec": spec}


def cert_manager_body(request: IssueRequest, node: str) -> dict[str, Any]:
    """Return the CertificateRequest for a volume, as cert-manager/csi-lib makes it."""
    pod, wanted = request.pod, request.wanted
    labels = {
        "csi.cert-manager.io/node-id-hash": fnv_word(node),
        "csi.cert-manager.io/volume-id-hash": fnv_word(request.handle),
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    head = {"name": request.name, "labels": labels, "ownerReferences": [owner]}
    if wanted.annotations:
        head["annotations"] = dict(wanted.annotations)
    spec = {
        "request": base64.b64encode(request.request).decode(),
        "issuerRef": {"name": wanted.issuer.name, "kind": wanted.issuer.kind, "group": wanted.issuer.group},
        "duration": f"{int(wanted.seconds)}s",
        "isCA": wanted.is_ca,
        "usages": list(wanted.usages),
    }
    return {"metadata": head, "spec": spec}


def fnv_word(text: str) -> str:
    """Return the FNV-1 hash (32 bits) of a text in letters that form no words."""
    number = 0x811C9DC5
    for byte in text.encode():
        number = (number * 0x01000193 & 0xFFFFFFFF) ^ byte
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def decode(text: str) -> bytes:
    """Return bytes of base64 text that another program wrote. Raises: UnavailableError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UnavailableError("the issuer's answer: not base64") from None


def _reject(what: str, conditions: list[Condition], kind: str) -> None:
    for one in conditions:
        if one.type == kind and one.status != "False":
            reason = ": ".join(part for part in (one.reason, one.message) if part)
            raise CertificateDeniedError(f"{what}: {kind.lower()}: {reason[:700]}")


async def _wait(
    what: str,
    create: Callable[[], Awaitable[object]],
    find: Callable[[], Awaitable[IssuedCertificate | str]],
    clock: Clock,
    patience: float,
) -> IssuedCertificate:
    """Create the object unless it exists, and look until it has an answer. Raises: UnavailableError with the reason."""
    until, pause = clock.monotonic() + patience, _POLL
    try:
        with suppress(ApiAlreadyExistsError):
            await create()
        while isinstance(answer := await find(), str):
            if clock.monotonic() >= until:
                raise UnavailableError(f"{what}: waiting: {answer}")
            await clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
    except ApiError as error:
        raise UnavailableError(f"{what}: the API server answered: {error}") from None
    return answer
