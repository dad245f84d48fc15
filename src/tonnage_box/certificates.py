"""Certificates that the box signs in its own process, with an authority that it keeps in a Secret.

Used by its nodes' inline volumes, and by its signer of PodCertificateRequests.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError, InvalidError, TonnageError
from tonnage.csi.inline.cert.authority import (
    CertificateAuthority,
    LoadAuthority,
    make_authority,
    public_key_of,
    read_authority,
    read_request,
    secret_data,
)
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError, IssuedCertificate, IssueRequest, split_roots
from tonnage.csi.inline.cert.issuers.remote import decode
from tonnage.csi.inline.cert.policy import NamePolicy, check_policy
from tonnage.csi.inline.cert.wanted import difference
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Secret
from tonnage.kubernetes.api.kinds import SECRETS
from tonnage.kubernetes.client.client import Client

AUTHORITY_SECRET = "tonnage-ca"  # an object's name


class LocalIssuer:
    """Signs in this process, by the same rules as the controller. load: the authority, for each signature."""

    def __init__(self, load: LoadAuthority, policy: NamePolicy, now: Callable[[], float]) -> None:
        self._load, self._policy, self._now = load, policy, now

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        return await asyncio.to_thread(self._sign, request, await self._load())

    async def discard(self, name: str, namespace: str) -> None:
        """Do nothing: there is no object."""

    async def roots(self) -> bytes:
        with suppress(TonnageError):
            return (await self._load()).roots
        return b""

    def _sign(self, request: IssueRequest, authority: CertificateAuthority) -> IssuedCertificate:
        asked = read_request(request.request)
        if what := difference(asked, request.wanted):
            raise InvalidError(f"certificate request: {what}")
        try:
            check_policy(request.wanted, request.pod, self._policy)
        except InvalidError as error:
            raise CertificateDeniedError(str(error)) from None
        return split_roots(authority.sign(public_key_of(asked), request.wanted, self._now()))


def box_issuer(client: Client, clock: Clock, policy: NamePolicy) -> LocalIssuer:
    """Return the issuer of the box's nodes. policy: what it may sign."""
    return LocalIssuer(partial(box_authority, client, clock), policy, clock.time)


async def box_authority(client: Client, clock: Clock) -> CertificateAuthority:
    """Return the authority of the box, which is made at first use. See secret_authority()."""
    return await secret_authority(client, names.SYSTEM_NAMESPACE, AUTHORITY_SECRET, clock.time())


async def secret_authority(client: Client, namespace: str, name: str, now: float) -> CertificateAuthority:
    """Return the authority of a Secret, which is made if it does not exist. Idempotent.

    Raises: ApiError. UnavailableError, InvalidError: what the Secret holds is no authority.
    """
    try:
        found = await client.get(SECRETS, name, namespace)
    except ApiNotFoundError:
        found = await _create_secret(client, namespace, name, now)
    return read_authority(*(decode(found.data.get(key, "")) for key in ("tls.crt", "tls.key")))


async def _create_secret(client: Client, namespace: str, name: str, now: float) -> Secret:
    data = {key: base64.b64encode(value).decode() for key, value in secret_data(make_authority(name, now)).items()}
    try:
        body = {"metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data}
        return await client.create(SECRETS, body, namespace)
    except ApiAlreadyExistsError:  # another agent was first: all sign with one authority
        return await client.get(SECRETS, name, namespace)
