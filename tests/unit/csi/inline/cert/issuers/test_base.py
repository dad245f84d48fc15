"""The issuer in this process."""

from __future__ import annotations

import pytest
from tests.unit.csi.inline.cert.makers import compatible, issue_request

from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority, read_certificates
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError, LocalIssuer, split_roots
from tonnage.csi.inline.cert.policy import NamePolicy

NOW = 1_800_000_000.0
AUTHORITY = make_authority("test", NOW)


async def load() -> CertificateAuthority:
    return AUTHORITY


ISSUER = LocalIssuer(load, NamePolicy(), lambda: NOW)


async def test_signed_with_the_root_apart() -> None:
    issued = await ISSUER.issue(issue_request(compatible()))
    assert issued.roots == AUTHORITY.pem
    assert len(read_certificates(issued.chain)) == 1
    await ISSUER.discard("any", "any")


async def test_the_policy_denies() -> None:
    with pytest.raises(CertificateDeniedError, match="not allowed: is-ca"):
        await ISSUER.issue(issue_request(compatible(is_ca="true")))


def test_answers_that_are_no_certificates() -> None:
    with pytest.raises(UnavailableError, match="want PEM"):
        split_roots(b"x")
