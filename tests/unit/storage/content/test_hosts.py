"""The option that names hosts."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy, parse_host, resolve


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("files.example.com", AllowedHost("files.example.com")),
        ("FILES.example.com:8443", AllowedHost("files.example.com", 8443)),
        ("10.0.0.1:80", AllowedHost("10.0.0.1", 80)),
        ("[::1]:80", AllowedHost("::1", 80)),
    ],
)
def test_a_host_may_have_a_port(text: str, host: AllowedHost) -> None:
    assert parse_host(text) == host


def test_without_a_port_both_usual_ones_are_allowed() -> None:
    policy = FetchPolicy((parse_host("h"),))
    for port in (80, 443):
        policy.check("H", port)
    with pytest.raises(InvalidError):
        policy.check("h", 8080)


def test_a_name_without_an_address_is_asked_for_again_later() -> None:
    def fails(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(UnavailableError, match="host h cannot be found"):
        FetchPolicy((parse_host("h"),), resolve=fails).addresses("h", 443)
    assert "127.0.0.1" in resolve("localhost", 80)
