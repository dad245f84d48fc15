"""What the box signs in its own process."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from pathlib import Path

import pytest
from tests.unit.csi.inline.cert.makers import compatible, fill, issue_request, ours

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.attributes import COMPATIBLE, OURS
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority, read_certificates
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError
from tonnage.csi.inline.cert.issuers.table import CertificateContext, configured_source
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.kubernetes.api.kinds import NAMESPACES, SECRETS
from tonnage.kubernetes.client.client import Client
from tonnage_box.certificates import AUTHORITY_SECRET, LocalIssuer, box_issuer, secret_authority

NAMESPACE = "tonnage-system"
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


@pytest.fixture
async def context(kube: Client) -> CertificateContext:
    await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    return CertificateContext(kube, RealClock(), "n1", partial(box_issuer, kube, RealClock()))


async def test_the_box_makes_its_authority_once(kube: Client, context: CertificateContext, tmp_path: Path) -> None:
    source = configured_source(COMPATIBLE.driver, {}, context)
    files = await source.fill(fill(tmp_path, compatible(key_algorithm="ecdsa")))
    secret = await kube.get(SECRETS, AUTHORITY_SECRET, NAMESPACE)
    assert base64.b64decode(secret.data["tls.crt"]) == files.content["ca.crt"].data
    made = await asyncio.gather(*(secret_authority(kube, NAMESPACE, "other", 1.8e9) for _ in range(3)))
    assert len({authority.pem for authority in made}) == 1


async def test_what_the_box_allows_more(context: CertificateContext, tmp_path: Path) -> None:
    options = {"allow": "dns:*.example.com;subject:O=Ex*", "domain": "example.org", "is-ca": "true"}
    source = configured_source(OURS.driver, options, context)
    wide = ours(dns_names="a.example.com", uri_sans="", organizations="Ex", is_ca="true")
    assert (await source.fill(fill(tmp_path, wide))).content
    with pytest.raises(InvalidError, match="is-ca=true"):
        configured_source(OURS.driver, {"is-ca": "no"}, context)
