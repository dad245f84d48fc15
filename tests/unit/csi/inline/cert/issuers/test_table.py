"""Names of issuers on a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.csi.inline.cert.makers import compatible, fill, ours

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.csi.inline.cert.attributes import COMPATIBLE, OURS
from tonnage.csi.inline.cert.issuers.remote import CertManagerIssuer, SigningRequestIssuer
from tonnage.csi.inline.cert.issuers.table import (
    CertificateContext,
    IssuerTable,
    IssuerTarget,
    configured_source,
    parse_targets,
)
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.wanted import IssuerReference
from tonnage.kubernetes.client.client import Client


def test_targets() -> None:
    found = parse_targets(["x=ca", "y=csr:example.com/signer", "*=cert-manager", "z=box"])
    assert found["x"] == IssuerTarget("ca")
    assert found["y"] == IssuerTarget("csr", "example.com/signer")
    assert found["*"] == IssuerTarget("cert-manager")


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "=box", "a=vault", "a=csr", "a=csr:x", "a=box:x", "a=ca:x", "a=cert-manager:x"]
)
def test_targets_that_are_wrong(text: str) -> None:
    with pytest.raises(InvalidError, match="want NAME=box"):
        parse_targets([text])


async def test_names_that_are_not_configured(kube: Client, tmp_path: Path) -> None:
    context = CertificateContext(kube, RealClock(), "n1")
    source = configured_source(COMPATIBLE.driver, {"issuers": "a=csr:a.b/c;b=ca"}, context)
    with pytest.raises(InvalidError, match=r"issuer 'ca-issuer': not configured on this node \(there is a, b\)"):
        await source.fill(fill(tmp_path, compatible()))


async def test_only_the_box_signs_itself(kube: Client) -> None:
    with pytest.raises(InvalidError, match="only the box"):
        configured_source(OURS.driver, {"issuers": "*=box"}, CertificateContext(kube, RealClock(), "n1"))


@pytest.mark.parametrize(("kind", "signer"), [("ca", "tonnage.dev/n"), ("csr:a.b/c", "a.b/c")])
def test_signers(kube: Client, kind: str, signer: str) -> None:
    table = IssuerTable(parse_targets([f"n={kind}"]), NamePolicy(), CertificateContext(kube, RealClock(), "n1"))
    issuer = table.find(IssuerReference("n", "", ""))
    assert isinstance(issuer, SigningRequestIssuer)
    assert issuer._signer == signer
    table = IssuerTable(parse_targets(["*=cert-manager"]), NamePolicy(), CertificateContext(kube, RealClock(), "n1"))
    assert isinstance(table.find(IssuerReference("n", "", "")), CertManagerIssuer)


@pytest.mark.parametrize("text", ["", "0", "101", "5s", "1.25", "-1", "nan"])
async def test_patience_that_is_wrong(kube: Client, text: str) -> None:
    with pytest.raises(InvalidError, match=f"patience={text}: want 1 to 100 seconds"):
        configured_source(OURS.driver, {"patience": text}, CertificateContext(kube, RealClock(), "n1"))


@pytest.mark.parametrize("kind", ["ca", "csr:a.b/c", "cert-manager"])
async def test_patience(kube: Client, kind: str) -> None:
    options, context = {"issuers": f"n={kind}", "patience": "1.5"}, CertificateContext(kube, RealClock(), "n1")
    source = configured_source(OURS.driver, options, context)
    assert source._find(IssuerReference("n", "", ""))._patience == 1.5  # type: ignore[attr-defined]


async def test_manifests_are_made_without_an_api_server(tmp_path: Path) -> None:
    source = configured_source(OURS.driver, {"issuers": "*=box"}, CertificateContext(None, RealClock(), ""))
    assert source.needs.republish
    with pytest.raises(UnavailableError, match="no API server"):
        await source.fill(fill(tmp_path, ours()))
