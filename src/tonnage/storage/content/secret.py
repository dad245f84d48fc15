"""Where a Secret's values may go when the owner of a claim, not of the class, says what is fetched. No I/O.

Who makes a Content may be someone who may not read the class's Secret. So the Secret itself names the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from tonnage.base.errors import InvalidError
from tonnage.storage.content.spec import ContentSpec, S3Spec, UrlSpec

HOSTS = "hosts"
"""Key of the Secret: hosts with spaces between, HOST or HOST:PORT for https, http://HOST[:PORT] without encryption."""
_OF_URLS, _OF_S3 = ("token", "username"), ("accessKey", "secretKey")
_PORTS = {"https": 443, "http": 80}


def check_hosts(content: ContentSpec, secrets: Mapping[str, str]) -> None:
    """Check that a Secret may be used for a claim's Content. Raises: InvalidError, without a value of the Secret."""
    if isinstance(content, UrlSpec):
        url, used = content.url, _OF_URLS
    elif isinstance(content, S3Spec):
        url, used = content.endpoint, _OF_S3
    else:
        return
    if not any(secrets.get(key) for key in used):
        return
    wanted = _origin(url)
    if any(_origin(word if "://" in word else f"https://{word}") == wanted for word in secrets.get(HOSTS, "").split()):
        return
    scheme, host, port = wanted or ("", "", 0)
    host = f"[{host}]" if ":" in host else host
    word = ("http://" if scheme == "http" else "") + (host if port == _PORTS.get(scheme) else f"{host}:{port}")
    raise InvalidError(
        f"{content}: the Secret of the class may not be sent there: its key {HOSTS!r} does not name {word!r};"
        " add that to the key, or use a class without a Secret"
    )


def _origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a URL; None for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]
