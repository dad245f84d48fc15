"""The source of certificates for inline volumes: key, request, issuer, files.

Used by the framework of inline drivers. What a volume has asked for and got survives in its folder, so that a repeated
call never asks twice and a volume never shows fewer files than before.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec
from cryptography import x509

from tonnage.base.errors import ApiError, InvalidError, UnavailableError
from tonnage.csi.inline.base import AttributeRule, Files, FillRequest, InlinePod, SourceNeeds
from tonnage.csi.inline.cert.attributes import (
    PENDING,
    PKCS12_PASSWORD,
    AttributeDialect,
    CertificateSettings,
    read_attributes,
)
from tonnage.csi.inline.cert.contents import MODE, check_issued, make_files
from tonnage.csi.inline.cert.expiry import EXPIRY
from tonnage.csi.inline.cert.gate import closed_gate
from tonnage.csi.inline.cert.issuers.base import (
    CertificateDeniedError,
    CertificateIssuer,
    IssuedCertificate,
    IssueRequest,
)
from tonnage.csi.inline.cert.keys import make_key, read_key, write_key
from tonnage.csi.inline.cert.state import CertificateState, load_state, save_state
from tonnage.csi.inline.cert.wanted import (
    IssuerReference,
    WantedCertificate,
    from_settings,
    reference_of,
    signing_request,
)
from tonnage.host.atomic_writer import Content
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.client import Client

READ_ONLY = "pod.spec.volumes[].csi.readOnly must be set to 'true'"
_DENIED = 3600.0
_SOON, _SOONEST = 1.0, 30.0
"""Seconds until a volume that waits for its certificate is filled again; until the first renewal."""
_EARLY, _MOST_EARLY = 0.05, 300.0
"""How much earlier the framework may call to spread renewals: of the time until then, and seconds."""
_STALE = 0.9
"""Part of a certificate's life after which it is reported that it could not be renewed."""

FindIssuer = Callable[[IssuerReference], CertificateIssuer]
"""Returns the issuer that attributes name. Raises: InvalidError for an unknown one."""


class CertificateSource:
    """Certificates under one driver name.

    now: seconds since 1970. client: to read pods that wait for something. soonest: seconds until the first renewal.
    """

    def __init__(
        self,
        dialect: AttributeDialect,
        find_issuer: FindIssuer,
        now: Callable[[], float],
        client: Client | None = None,
        *,
        soonest: float = _SOONEST,
    ) -> None:
        self._soonest = soonest
        self._dialect, self._find, self._now, self._client = dialect, find_issuer, now, client
        self._pending: dict[Path, float] = {}

    @cached_property
    def attributes(self) -> Mapping[str, AttributeRule]:
        return self._dialect.rules()

    @cached_property
    def needs(self) -> SourceNeeds:
        # The kubelet calls again: passwords are not recorded, so after a restart of the agent renewals need them anew.
        return SourceNeeds(republish=True, accepts=self._dialect.accepts)

    async def fill(self, request: FillRequest) -> Files:
        if not request.read_only:
            raise InvalidError(READ_ONLY)
        settings = self._settings(request)
        issuer = self._find(reference_of(settings))
        state = await asyncio.to_thread(load_state, request.folder)
        if state is None or not await self._is_current(state, request, settings, issuer):
            try:
                state = await self._renewed(state, request, settings, issuer)
            except UnavailableError as error:
                if settings.waits or (state is not None and state.ends):
                    raise
                return await self._waiting(str(error), request, settings, issuer)
        self._pending.pop(request.folder, None)
        EXPIRY.show(settings.issuer, request.folder, state.ends, self._now)
        stale = state.begins + _STALE * (state.ends - state.begins)
        return replace(_files(state.files, state.again, settings), stale=stale)

    def _settings(self, request: FillRequest) -> CertificateSettings:
        """Return the checked attributes. A password may come from nodePublishSecretRef."""
        attributes, key = dict(request.attributes), self._dialect.prefix + PKCS12_PASSWORD
        if (password := request.pod.secrets.get(PKCS12_PASSWORD)) and key not in attributes:
            attributes[key] = password
        return read_attributes(attributes, self._dialect)

    async def _is_current(
        self, state: CertificateState, request: FillRequest, settings: CertificateSettings, issuer: CertificateIssuer
    ) -> bool:
        """Whether what was issued is still to be shown."""
        wanted = from_settings(settings, replace(request.pod, addresses=state.addresses))
        if not state.again or state.wanted != _digest(settings, wanted) or _is_over(state, self._now()):
            return False
        roots = await issuer.roots()
        return not roots or not state.roots or roots == state.roots

    async def _renewed(
        self,
        before: CertificateState | None,
        request: FillRequest,
        settings: CertificateSettings,
        issuer: CertificateIssuer,
    ) -> CertificateState:
        """Ask for a certificate. Raises: UnavailableError while the pod or the issuer is not ready for that."""
        pod = await self._ready_pod(request.pod, settings) if settings.after else request.pod
        wanted = from_settings(settings, pod)
        state = await asyncio.to_thread(self._requested, before, request.folder, settings, wanted, pod)
        code = "unavailable"
        try:
            issued = await self._issue(
                state,
                IssueRequest(state.name, state.request, wanted, pod, request.handle, settings.waits),
                request.folder,
                issuer,
            )
            roots = await issuer.roots() or issued.roots
            done = await asyncio.to_thread(self._finish, request.folder, state, settings, issued, roots)
            code = "ok"
        except CertificateDeniedError:
            code = "denied"
            raise
        finally:
            EXPIRY.issued(settings.issuer, code, is_renewal=before is not None and bool(before.ends))
        return done

    async def _ready_pod(self, pod: InlinePod, settings: CertificateSettings) -> InlinePod:
        """Return the pod with its addresses. Raises: UnavailableError that names the gate which is not open."""
        if self._client is None:
            raise UnavailableError("after: this node has no API server to read the pod from")
        try:
            found = await self._client.get(PODS, pod.name, pod.namespace)
        except ApiError as error:
            raise UnavailableError(f"after: pod {pod.namespace}/{pod.name} cannot be read: {error}") from None
        if found.metadata.uid != pod.uid:
            raise UnavailableError(f"after: pod {pod.namespace}/{pod.name} is another one of that name")
        if gate := closed_gate(settings.after, found):
            raise UnavailableError(f"waiting for {gate} of pod {pod.namespace}/{pod.name}")
        return replace(pod, addresses=tuple(address.ip for address in found.status.pod_ips))

    async def _waiting(
        self, why: str, request: FillRequest, settings: CertificateSettings, issuer: CertificateIssuer
    ) -> Files:
        """Return what a pod sees that does not wait: the reason, and the roots if they are known."""
        for folder in [one for one in self._pending if not one.exists()]:
            del self._pending[folder]
        age = self._now() - self._pending.setdefault(request.folder, self._now())
        content = {PENDING: f"{why}\n".encode()}
        if roots := await issuer.roots():
            content[settings.file("ca-file")] = roots
        return _files(content, self._now() + min(max(age / 4, _SOON), _SOONEST), settings)

    def _requested(
        self,
        before: CertificateState | None,
        folder: Path,
        settings: CertificateSettings,
        wanted: WantedCertificate,
        pod: InlinePod,
    ) -> CertificateState:
        """Return the request that is under way, else a new one, recorded. Blocking."""
        now, digest = self._now(), _digest(settings, wanted)
        is_same = before is not None and before.wanted == digest
        if before is not None and is_same and not before.ends and not _is_over(before, now):
            return before
        reuse = settings.reuse_key and is_same
        key = read_key(before.key) if reuse and before is not None else make_key(settings.algorithm, settings.size)
        fresh = CertificateState(
            name=str(uuid.uuid4()),
            key=write_key(key, "PKCS8"),
            request=signing_request(wanted, key),
            wanted=digest,
            addresses=pod.addresses,
            replaced=before.name if before is not None else "",
        )
        save_state(folder, fresh)
        return fresh

    async def _issue(
        self, state: CertificateState, ask: IssueRequest, folder: Path, issuer: CertificateIssuer
    ) -> IssuedCertificate:
        """Ask the issuer; a rejection is recorded."""
        if state.denied:
            raise CertificateDeniedError(f"{state.denied}; asking again after an hour, or for a new pod")
        if state.replaced:
            await issuer.discard(state.replaced, ask.pod.namespace)
        try:
            return await issuer.issue(ask)
        except CertificateDeniedError as error:
            denied = msgspec.structs.replace(state, denied=str(error), until=self._now() + _DENIED)
            await asyncio.to_thread(save_state, folder, denied)
            raise

    def _finish(
        self,
        folder: Path,
        state: CertificateState,
        settings: CertificateSettings,
        issued: IssuedCertificate,
        roots: bytes,
    ) -> CertificateState:
        """Check what was issued, make the files of it, and record both. Blocking. Raises: UnavailableError."""
        now, key = self._now(), read_key(state.key)
        try:
            certificate = check_issued(issued, key, now)
        except UnavailableError as error:
            raise UnavailableError(f"issuer {settings.issuer[:80]}: {error}") from None
        again = max(_renewal(certificate, settings, now), now + self._soonest)
        done = msgspec.structs.replace(
            state,
            files=make_files(settings, key, issued),
            again=again,
            renew=again - min(_EARLY * (again - now), _MOST_EARLY),
            begins=certificate.not_valid_before_utc.timestamp(),
            ends=certificate.not_valid_after_utc.timestamp(),
            issued=now,
            roots=roots,
            replaced="",
        )
        save_state(folder, done)
        return done


def _files(content: Mapping[str, bytes], again: float, settings: CertificateSettings) -> Files:
    return Files({name: Content(data, MODE) for name, data in content.items()}, again, settings.fs_group)


def _renewal(certificate: x509.Certificate, settings: CertificateSettings, now: float) -> float:
    """Return when to renew: at two thirds of the life, or renew-before; the framework spreads it."""
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    if settings.renew_before is not None and end - settings.renew_before > now:
        return end - settings.renew_before
    return end - (end - begin) / 3


def _is_over(state: CertificateState, now: float) -> bool:
    """Whether a state's certificate is to be renewed, or its rejection to be asked again."""
    if state.denied:  # a clock that was set back does not make the hour longer
        return state.until <= now or state.until > now + _DENIED
    was_set_back = state.issued > now and state.begins > now  # then nobody accepts the certificate now
    return bool(state.again and state.renew <= now) or was_set_back


def _digest(settings: CertificateSettings, wanted: WantedCertificate) -> str:
    asked = (wanted.subject.public_bytes(), wanted.names, wanted.usages, sorted(settings.values.items()))
    return hashlib.sha256(repr(asked).encode()).hexdigest()
