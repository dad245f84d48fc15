"""Keys and certificates of `podCertificate` volume sources (KEP-4317), requested from the signer that the pod names.

Used by the projected volumes of a node. A key is made here, and only its pod's volume ever shows it. What is requested
is known in memory only: after a restart of the kubelet all is requested anew, as in Kubernetes.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tonnage.base.aio.clock import time_of
from tonnage.base.errors import ApiNotFoundError, InvalidError, UnsupportedError
from tonnage.csi.inline.cert.authority import pem_of, read_certificates
from tonnage.csi.inline.cert.keys import PrivateKey, make_key, public_bytes, read_key, write_key
from tonnage.kubernetes.api.certificate import PodCertificateRequest
from tonnage.kubernetes.api.kinds import NODES, POD_CERTIFICATE_REQUESTS, SERVICE_ACCOUNTS
from tonnage.kubernetes.api.pods import Pod, PodCertificateProjection
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.bind import find
from tonnage_box.kubelet.volumes.csi_volumes import MountError

_KEY_TYPES = {
    "RSA3072": ("RSA", 3072),
    "RSA4096": ("RSA", 4096),
    "ECDSAP256": ("ECDSA", 256),
    "ECDSAP384": ("ECDSA", 384),
    "ECDSAP521": ("ECDSA", 521),
    "ED25519": ("Ed25519", 0),
}
_LOOK_SECONDS = 300.0
"""Between looks at a request whose answer was not seen."""
_OVERDUE_SECONDS = 600.0


@dataclass(frozen=True)
class Credential:
    """A key and its certificate with the chain, as PEM. refresh_at, ends: seconds since the epoch."""

    key: bytes = field(repr=False)
    chain: bytes
    refresh_at: float
    ends: float


@dataclass
class _Source:
    """One source of a pod's volume. request, key: the latest; is_open: it has no answer yet. rejected: why."""

    shown: Credential | None = None
    request: str = ""
    key: bytes = field(default=b"", repr=False)
    is_open: bool = False
    rejected: str = ""
    warned: set[str] = field(default_factory=set)


class PodCertificates:
    """Credentials of one node's pods. now: seconds since the epoch."""

    def __init__(self, client: Client, node: str, *, now: Callable[[], float] = time.time) -> None:
        self._client, self._node, self._now = client, node, now
        self._sources: dict[tuple[str, str, int], _Source] = {}
        self.warn: Callable[[Pod, str, str], None] = lambda pod, reason, message: None
        """Emits a warning Event on a pod: reason and message."""

    async def shown(self, pod: Pod, volume: str, number: int, source: PodCertificateProjection) -> Credential:
        """Return what a source of a volume shows now. It is requested, and requested anew when it is to be renewed.

        Raises: MountError as long as there is no certificate. ApiError. UnsupportedError for an unknown type of key.
        """
        known = self._sources.setdefault((pod.metadata.uid, volume, number), _Source())
        if known.is_open:
            await self._take_answer(pod, known)
        is_due = known.shown is None or self._now() >= known.shown.refresh_at
        if is_due and not known.is_open and not known.rejected:
            await self._request(pod, source, known)
        if known.shown is None:
            key = f"{pod.metadata.namespace}/{known.request}"
            why = known.rejected or f"PodCertificateRequest {key} to {source.signer_name} has no answer yet"
            text = f'MountVolume.SetUp failed for volume "{volume}" : {why}'
            raise MountError(text, topic="" if known.rejected else topic(key))
        self._warn_late(pod, known, known.shown)
        return known.shown

    def wait(self, pod: Pod, volume: str, number: int) -> float:
        """Seconds until shown() may return something else."""
        shown = self._sources[pod.metadata.uid, volume, number].shown
        left = shown.refresh_at - self._now() if shown is not None else 0.0
        return left if left > 0 else _LOOK_SECONDS

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone; its requests go with it."""
        for key in [key for key in self._sources if key[0] == uid]:
            del self._sources[key]

    async def _request(self, pod: Pod, source: PodCertificateProjection, known: _Source) -> None:
        meta, account = pod.metadata, pod.spec.service_account_name or "default"
        if source.key_type not in _KEY_TYPES:
            kinds = ", ".join(_KEY_TYPES)
            raise UnsupportedError(f"podCertificate: keyType {source.key_type[:40]!r}: there is {kinds}")
        key = await asyncio.to_thread(make_key, *_KEY_TYPES[source.key_type])
        spec: dict[str, Any] = {
            "signerName": source.signer_name,
            "podName": meta.name,
            "podUID": meta.uid,
            "serviceAccountName": account,
            "serviceAccountUID": (await self._client.get(SERVICE_ACCOUNTS, account, meta.namespace)).metadata.uid,
            "nodeName": self._node,
            "nodeUID": (await self._client.get(NODES, self._node)).metadata.uid,
            "stubPKCS10Request": base64.b64encode(_stub_request(key)).decode(),
            "unverifiedUserAnnotations": source.user_annotations,
        }
        if source.max_expiration_seconds is not None:
            spec["maxExpirationSeconds"] = source.max_expiration_seconds
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        body = {"metadata": {"generateName": "req-", "ownerReferences": [owner]}, "spec": spec}
        made = await self._client.create(POD_CERTIFICATE_REQUESTS, body, meta.namespace)
        former, known.request = known.request, made.metadata.name
        known.key, known.is_open = write_key(key, "PKCS8"), True
        if former:  # of each source, only the latest request stays, for people
            await self._delete(former, meta.namespace)

    async def _delete(self, name: str, namespace: str) -> None:
        try:
            await self._client.delete(POD_CERTIFICATE_REQUESTS, name, namespace)
        except ApiNotFoundError:
            return

    async def _take_answer(self, pod: Pod, known: _Source) -> None:
        request = await find(self._client, POD_CERTIFICATE_REQUESTS, known.request, pod.metadata.namespace)
        if request is None:  # somebody has deleted it
            known.is_open = False
            return
        for one in request.status.conditions:
            why = f"reason={one.reason!r}, message={one.message!r}"
            if one.type == "Denied":
                self._reject(pod, known, "Denied", f"was denied, {why}")
            elif one.type == "Failed":
                self._reject(pod, known, "Failed", f"failed, {why}")
            elif one.type == "Issued":
                try:
                    known.shown = _credential(request, known.key, self._now() + _LOOK_SECONDS)
                except InvalidError as error:
                    self._reject(pod, known, "Failed", f"has a certificate that cannot be used: {error}")
                known.is_open = False
                known.warned.clear()

    def _reject(self, pod: Pod, known: _Source, reason: str, what: str) -> None:
        known.is_open = False
        known.rejected = f"PodCertificateRequest {pod.metadata.namespace}/{known.request} {what}"
        self.warn(pod, reason, known.rejected)

    def _warn_late(self, pod: Pod, known: _Source, shown: Credential) -> None:
        now = self._now()
        if now >= shown.refresh_at + _OVERDUE_SECONDS:
            self._warn_once(pod, known, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
        if now >= shown.ends:
            self._warn_once(pod, known, "CertificateExpired", "PodCertificate expired")

    def _warn_once(self, pod: Pod, known: _Source, reason: str, message: str) -> None:
        if reason not in known.warned:
            known.warned.add(reason)
            self.warn(pod, reason, message)


def topic(key: str) -> str:
    """What a volume waits for that has a request without an answer: see MountError.topic."""
    return f"podcertificaterequest {key}"


def _credential(request: PodCertificateRequest, key: bytes, earliest: float) -> Credential:
    """Return what a request has brought. earliest: time of its renewal at least. Raises: InvalidError."""
    chain = read_certificates(request.status.certificate_chain.encode())
    if not chain or public_bytes(chain[0].public_key()) != public_bytes(read_key(key).public_key()):
        raise InvalidError("it is not one of the pod's key")
    begins, ends = chain[0].not_valid_before_utc.timestamp(), chain[0].not_valid_after_utc.timestamp()
    refresh = time_of(request.status.begin_refresh_at) or ends - (ends - begins) / 3
    return Credential(key, pem_of(chain), max(refresh, earliest), ends)


def _stub_request(key: PrivateKey) -> bytes:
    """Return an empty PKCS #10 request as DER, which proves that its sender has the key."""
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, digest)
    return request.public_bytes(serialization.Encoding.DER)
