"""Authentication of bearer tokens: the kubeconfig's own, and those of service accounts."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.errors import HostError
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.access.signing_key import SigningKey
from tonnage_box.apiserver.access.token import (
    ISSUER,
    LEEWAY,
    Reference,
    TokenClaims,
    TokenError,
    check_time,
    decode,
    looks_like_token,
)
from tonnage_box.apiserver.request.user import ADMIN, ApiUser, account_groups, account_name
from tonnage_box.apiserver.storage.store import ObjectKey, Store

_REMEMBERED = 4096
_EXTRA = "authentication.kubernetes.io/"
IsAdminToken = Callable[[str], bool]


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""
    deletion: str = msgspec.field(name="deletionTimestamp", default="")


class _Identity(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


_identity = msgspec.json.Decoder(_Identity).decode


class Authenticator:
    """Finds the user of a token. key: None where service accounts have no tokens."""

    def __init__(self, store: Store, clock: Clock, key: SigningKey | None, is_admin_token: IsAdminToken) -> None:
        self._store, self._clock, self._key = store, clock, key
        self._is_admin_token = is_admin_token
        # Digest of a token -> its claims: its signature is checked once, everything that may change each time.
        self._verified: OrderedDict[bytes, TokenClaims] = OrderedDict()

    async def header_user(self, header: str) -> ApiUser | None:
        """The user of an Authorization header, or None."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            return (await self.token_user(token.strip(), (ISSUER,)))[0]
        except TokenError:
            return None

    async def token_user(self, token: str, audiences: Iterable[str]) -> tuple[ApiUser, list[str]]:
        """User of a token, and those of the audiences that it is for. Raises: TokenError."""
        if self._is_admin_token(token):
            return ADMIN, [word for word in audiences if word == ISSUER]
        claims = await self._claims(token)
        check_time(claims, self._clock.time())
        wanted = [word for word in audiences if word in claims.aud]
        if claims.iss != ISSUER or not wanted:
            raise TokenError("token is for another audience")
        self._check_objects(claims)
        return _user(claims), wanted

    async def _claims(self, token: str) -> TokenClaims:
        if self._key is None or not looks_like_token(token) or not self._key.is_made:
            raise TokenError("unknown token")
        digest = hashlib.sha256(token.encode()).digest()
        if (claims := self._verified.get(digest)) is not None:
            self._verified.move_to_end(digest)
            return claims
        try:
            pair = await self._key.pair()
        except HostError as error:
            raise TokenError("tokens cannot be checked") from error
        claims = self._verified[digest] = decode(token, pair)
        if len(self._verified) > _REMEMBERED:
            self._verified.popitem(last=False)
        return claims

    def _check_objects(self, claims: TokenClaims) -> None:
        """A token ends with its account and with the object that it is bound to. Raises: TokenError."""
        bound = claims.kubernetes
        self._check(kinds.SERVICE_ACCOUNTS, bound.namespace, bound.serviceaccount)
        if bound.secret is not None:
            self._check(kinds.SECRETS, bound.namespace, bound.secret)
        if bound.pod is not None:
            self._check(kinds.PODS, bound.namespace, bound.pod)
        elif bound.node is not None:  # of a pod's token the node is information only
            self._check(kinds.NODES, "", bound.node)

    def _check(self, kind: Kind[Any], namespace: str, wanted: Reference) -> None:
        record = self._store.get(ObjectKey(kind.key, namespace, wanted.name))
        if record is None:
            raise TokenError("service account token has been invalidated")
        found = _identity(record.data).metadata
        ended = rfc3339(self._clock.time() - LEEWAY)  # finalizers may keep what was deleted for ever
        if found.uid != wanted.uid or (found.deletion and found.deletion < ended):
            raise TokenError("service account token has been invalidated")


def _user(claims: TokenClaims) -> ApiUser:
    bound = claims.kubernetes
    extra = {f"{_EXTRA}credential-id": (f"JTI={claims.jti}",)} if claims.jti else {}
    for word, reference in (("pod", bound.pod), ("node", bound.node)):
        if reference is not None:
            extra[f"{_EXTRA}{word}-name"] = (reference.name,)
            if reference.uid:
                extra[f"{_EXTRA}{word}-uid"] = (reference.uid,)
    name = account_name(bound.namespace, bound.serviceaccount.name)
    return ApiUser(name, account_groups(bound.namespace), bound.serviceaccount.uid, extra)
