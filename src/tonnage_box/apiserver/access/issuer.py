"""OpenID Connect discovery of the issuer of service account tokens (pkg/serviceaccount/openidmetadata.go)."""

from __future__ import annotations

import msgspec

from tonnage.kubernetes.client.transport import JSON, Request, Response
from tonnage_box.apiserver.access.signing_key import ALGORITHM, SigningKey
from tonnage_box.apiserver.access.token import ISSUER

_KEYS = "/openid/v1/jwks"
_HEADERS = {"Cache-Control": "public, max-age=3600"}


async def discovery(request: Request, key: SigningKey | None) -> Response | None:
    """Answer /.well-known/openid-configuration and /openid/v1/jwks; None for other paths. Raises: HostError."""
    if key is None or request.method not in ("GET", "HEAD"):
        return None
    if request.path == "/.well-known/openid-configuration":
        document = {
            "issuer": ISSUER,
            "jwks_uri": f"{ISSUER}{_KEYS}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }
        return Response(200, msgspec.json.encode(document), {"Content-Type": JSON, **_HEADERS})
    if request.path == _KEYS:
        keys = {"keys": [(await key.pair()).json_web_key()]}
        return Response(200, msgspec.json.encode(keys), {"Content-Type": "application/jwk-set+json", **_HEADERS})
    return None
