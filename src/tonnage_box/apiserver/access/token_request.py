"""TokenRequest: POST serviceaccounts/NAME/token (pkg/registry/core/serviceaccount/storage)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiConflictError, ApiError, FieldCause
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.access.token import ISSUER, KubernetesClaims, Reference, TokenClaims, encode
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.request.user import account_name
from tonnage_box.apiserver.schema import decode
from tonnage_box.apiserver.storage.store import Obj, ObjectKey

_KIND, _GROUP, _VERSION = "TokenRequest", "authentication.k8s.io", "v1"
_DEFAULT_SECONDS, _MIN_SECONDS, _MAX_SECONDS = 3600, 600, 1 << 32
AUTOMATIC_SECONDS = 3607
"""Life that admission asks for; such a token of a pod lives longer, for clients that never read it again."""
_EXTENDED_SECONDS = 365 * 24 * 3600
_BINDABLE = {kind.kind: kind for kind in (kinds.PODS, kinds.NODES, kinds.SECRETS)}


@dataclass(frozen=True)
class _Bound:
    """What the token is bound to; node: of a pod's token the pod's node."""

    pod: Reference | None = None
    node: Reference | None = None
    secret: Reference | None = None


async def issue(access: ApiAccess, place: RequestPath, request: Obj) -> Obj:
    """The request with its token. Raises: 400, 404, 409, 422, 501 (no tokens here)."""
    decode.normalize("authentication.v1.TokenRequest", request)
    _check_head(request)
    account = _existing(access, kinds.SERVICE_ACCOUNTS, place.name, place.namespace or "")
    meta, spec = request.setdefault("metadata", {}), request.setdefault("spec", {})
    _check_names(meta, place, account["metadata"]["uid"])
    _default(spec)
    _check_seconds(spec["expirationSeconds"])
    bound = _bound(access, place, spec.get("boundObjectRef"))
    if access.key is None:
        raise errors.not_built("this API server issues no tokens: it has no data folder for their key")
    now, asked = int(access.clock.time()), spec["expirationSeconds"]
    lives = asked
    if bound.pod is not None and asked == AUTOMATIC_SECONDS and spec["audiences"] == [ISSUER]:
        lives = _EXTENDED_SECONDS
    claims = TokenClaims(
        spec["audiences"],
        now + lives,
        now,
        ISSUER,
        str(uuid.uuid4()),
        KubernetesClaims(
            place.namespace or "",
            Reference(place.name, account["metadata"]["uid"]),
            bound.pod,
            bound.secret,
            bound.node,
            now + asked if lives != asked else None,
        ),
        now,
        account_name(place.namespace or "", place.name),
    )
    token = encode(claims, await access.key.pair())
    named = {"name": place.name, "namespace": place.namespace, "uid": account["metadata"]["uid"]}
    return {
        "kind": _KIND,
        "apiVersion": f"{_GROUP}/{_VERSION}",
        "metadata": {**meta, **named, "creationTimestamp": rfc3339(now)},
        "spec": spec,
        "status": {"token": token, "expirationTimestamp": rfc3339(now + asked)},
    }


def _check_head(request: Obj) -> None:
    kind, version = request.get("kind") or _KIND, request.get("apiVersion") or f"{_GROUP}/{_VERSION}"
    if kind != _KIND or version != f"{_GROUP}/{_VERSION}":
        raise errors.bad_request(f"want a {_KIND} of {_GROUP}/{_VERSION}, not {kind[:80]} of {version[:80]}")


def _existing(access: ApiAccess, kind: Kind[Any], name: str, namespace: str) -> Obj:
    record = access.store.get(ObjectKey(kind.key, namespace, name))
    if record is None:
        raise errors.not_found(kind, name)
    return record.decode()


def _check_names(meta: Obj, place: RequestPath, uid: str) -> None:
    for field, wanted, word in (("name", place.name, "name"), ("namespace", place.namespace, "namespace")):
        if meta.get(field) and meta[field] != wanted:
            message = f'Invalid value: "{meta[field]}": must match the service account {word} if specified'
            raise _invalid(f"metadata.{field}", message, place.name)
    if meta.get("uid") and meta["uid"] != uid:
        why = f"the UID in the token request ({meta['uid']}) does not match the UID of the service account ({uid})"
        raise _conflict(_KIND, place.name, why)


def _default(spec: Obj) -> None:
    spec["audiences"] = [str(word) for word in spec.get("audiences") or ()] or [ISSUER]
    if spec.get("expirationSeconds") is None:
        spec["expirationSeconds"] = _DEFAULT_SECONDS


def _check_seconds(seconds: int) -> None:
    why = ""
    if seconds < _MIN_SECONDS:
        why = "may not specify a duration less than 10 minutes"
    elif seconds > _MAX_SECONDS:
        why = "may not specify a duration larger than 2^32 seconds"
    if why:
        raise _invalid("spec.expirationSeconds", f"Invalid value: {seconds}: {why}")


def _bound(access: ApiAccess, place: RequestPath, ref: Obj | None) -> _Bound:
    """Find the object that the token is to be bound to. Raises: 400, 404, 409."""
    if not ref:
        return _Bound()
    kind = _BINDABLE.get(ref.get("kind", "")) if ref.get("apiVersion") == "v1" else None
    if kind is None:
        group, _, version = ref.get("apiVersion", "").rpartition("/")
        what = f"{group}/{version}, Kind={ref.get('kind', '')}"
        raise errors.bad_request(f"cannot bind token to object of type {what}")
    name = ref.get("name", "")
    obj = _existing(access, kind, name, (place.namespace or "") if kind.namespaced else "")
    uid = obj["metadata"]["uid"]
    if kind is kinds.PODS and (obj.get("spec") or {}).get("serviceAccountName") != place.name:
        raise errors.bad_request(
            f'cannot bind token for serviceaccount "{place.name}" to pod running with different serviceaccount name.'
        )
    if ref.get("uid") and ref["uid"] != uid:
        why = (
            f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record. "
            "The object might have been deleted and then recreated"
        )
        raise _conflict(kind.kind, name, why)
    found = Reference(name, uid)
    if kind is kinds.PODS:
        return _Bound(pod=found, node=_node_of(access, obj))
    return _Bound(node=found) if kind is kinds.NODES else _Bound(secret=found)


def _node_of(access: ApiAccess, pod: Obj) -> Reference | None:
    name = pod["spec"].get("nodeName")
    if not name:
        return None
    record = access.store.get(ObjectKey(kinds.NODES.key, "", name))
    return Reference(name, record.decode()["metadata"]["uid"] if record is not None else "")


def _invalid(field: str, message: str, name: str = "") -> ApiError:
    return errors.invalid(_GROUP, _KIND, name, [FieldCause(field, message, "FieldValueInvalid")])


def _conflict(kind: str, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {kind} "{name}": {why}'
    return ApiConflictError(message, kind=kind, name=name)
