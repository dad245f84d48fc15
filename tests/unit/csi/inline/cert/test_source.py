"""A volume's certificate: issued once, renewed at two thirds, never less than before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples
from tests.unit.csi.inline.cert.makers import compatible, fill, ours, pod

from tonnage.base.errors import InvalidError, TonnageError, UnavailableError
from tonnage.csi.inline.base import Files
from tonnage.csi.inline.cert.attributes import COMPATIBLE, OURS
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority, read_certificates
from tonnage.csi.inline.cert.contents import check_issued
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError, IssuedCertificate, IssueRequest
from tonnage.csi.inline.cert.keys import read_key
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.source import READ_ONLY, CertificateSource
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.client import Client
from tonnage_box.certificates import LocalIssuer

NOW = 1_800_000_000.0
AUTHORITY = make_authority("test", NOW)


async def load() -> CertificateAuthority:
    return AUTHORITY


class ManualIssuer:
    """Issues when it is told to, and counts."""

    def __init__(self) -> None:
        self.now = NOW
        self.names: list[str] = []
        self.waits: list[bool] = []
        self.discarded: list[str] = []
        self._signs = LocalIssuer(load, NamePolicy(), lambda: self.now)
        self.failure: TonnageError | None = None
        self.published = AUTHORITY.roots

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        self.names.append(request.name)
        self.waits.append(request.waits)
        if self.failure is not None:
            raise self.failure
        return await self._signs.issue(request)

    async def discard(self, name: str, namespace: str) -> None:
        self.discarded.append(name)

    async def roots(self) -> bytes:
        return self.published

    def source(self, dialect: Any = OURS) -> CertificateSource:
        return CertificateSource(dialect, lambda reference: self, lambda: self.now)


@pytest.fixture
def issuer() -> ManualIssuer:
    return ManualIssuer()


async def test_files_and_the_time_to_renew(issuer: ManualIssuer, tmp_path: Path) -> None:
    files = await issuer.source().fill(fill(tmp_path, ours(duration="1h", fs_group="3000")))
    assert files.group == 3000
    assert sorted(files.content) == ["ca.crt", "tls.crt", "tls.key"]
    assert files.again == NOW + 3600 - (3600 + 300) / 3
    assert files.content["ca.crt"].data == AUTHORITY.pem
    assert {content.mode for content in files.content.values()} == {0o440}


async def test_a_repeated_call_and_a_restart_ask_nothing(issuer: ManualIssuer, tmp_path: Path) -> None:
    first = await issuer.source().fill(fill(tmp_path, ours()))
    again = await issuer.source().fill(fill(tmp_path, ours(), before=first))
    assert again == first
    assert len(issuer.names) == 1


async def test_a_call_a_little_earlier_renews_since_the_framework_spreads_calls(
    issuer: ManualIssuer, tmp_path: Path
) -> None:
    first = await issuer.source().fill(fill(tmp_path, ours()))
    assert first.again is not None
    for early, requests in ((301, 1), (299, 2)):
        issuer.now = first.again - early
        await issuer.source().fill(fill(tmp_path, ours(), before=first))
        assert len(issuer.names) == requests


async def test_key_stores_are_the_same_until_renewal(issuer: ManualIssuer, tmp_path: Path) -> None:
    attributes = ours(pkcs12_enable="true", pkcs12_password="s")
    first = await issuer.source().fill(fill(tmp_path, attributes))
    assert await issuer.source().fill(fill(tmp_path, attributes)) == first


async def test_one_request_while_the_issuer_waits(issuer: ManualIssuer, tmp_path: Path) -> None:
    issuer.failure = UnavailableError("issuer x: waiting: not yet")
    for _ in range(3):
        with pytest.raises(UnavailableError, match="waiting: not yet"):
            await issuer.source().fill(fill(tmp_path, ours()))
    issuer.failure = None
    await issuer.source().fill(fill(tmp_path, ours()))
    assert len(set(issuer.names)) == 1
    assert len(issuer.names) == 4


async def test_renewed_with_a_new_key_unless_it_is_to_be_kept(issuer: ManualIssuer, tmp_path: Path) -> None:
    keys = []
    for reuse in ("false", "true"):
        folder = tmp_path / reuse
        folder.mkdir()
        attributes = ours(duration="1h", reuse_private_key=reuse)
        first = await issuer.source().fill(fill(folder, attributes))
        issuer.now = first.again or 0
        second = await issuer.source().fill(fill(folder, attributes, before=first))
        assert second.content["tls.crt"].data != first.content["tls.crt"].data
        keys.append(first.content["tls.key"].data == second.content["tls.key"].data)
    assert keys == [False, True]
    assert issuer.discarded == [issuer.names[0], issuer.names[2]]


async def test_a_denied_request_is_repeated_after_an_hour_only(issuer: ManualIssuer, tmp_path: Path) -> None:
    issuer.failure = CertificateDeniedError("issuer x: denied: no")
    for _ in range(3):
        with pytest.raises(CertificateDeniedError, match="denied: no"):
            await issuer.source().fill(fill(tmp_path, ours()))
    assert len(issuer.names) == 1
    issuer.now, issuer.failure = issuer.now + 3600, None
    await issuer.source().fill(fill(tmp_path, ours()))
    assert len(issuer.names) == 2


@pytest.mark.parametrize(("value", "left"), [("10m", 600), ("2h", 1300)])
async def test_renew_before(issuer: ManualIssuer, tmp_path: Path, value: str, left: float) -> None:
    files = await issuer.source().fill(fill(tmp_path, ours(duration="1h", renew_before=value)))
    assert files.again == NOW + 3600 - left


async def test_pods_must_ask_for_a_read_only_volume(issuer: ManualIssuer, tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as raised:
        await issuer.source(COMPATIBLE).fill(fill(tmp_path, compatible(), read_only=False))
    assert str(raised.value) == READ_ONLY


async def test_a_password_of_a_secret(issuer: ManualIssuer, tmp_path: Path) -> None:
    secret = pod(secrets={"pkcs12-password": "s"})
    files = await issuer.source().fill(fill(tmp_path, ours(pkcs12_enable="true"), pod=secret))
    assert "keystore.p12" in files.content


async def test_the_framework_learns_which_attributes_are_secret(issuer: ManualIssuer) -> None:
    source = issuer.source(COMPATIBLE)
    assert [key for key, rule in source.attributes.items() if rule.secret] == ["csi.cert-manager.io/pkcs12-password"]
    assert source.needs.republish


async def test_new_roots_of_the_issuer_renew_at_once(issuer: ManualIssuer, tmp_path: Path) -> None:
    first = await issuer.source().fill(fill(tmp_path, ours()))
    issuer.published = b""  # not known now is no change
    assert await issuer.source().fill(fill(tmp_path, ours(), before=first)) == first
    issuer.published = AUTHORITY.roots + make_authority("next", NOW).roots
    second = await issuer.source().fill(fill(tmp_path, ours(), before=first))
    assert second.content["tls.crt"] != first.content["tls.crt"]
    assert await issuer.source().fill(fill(tmp_path, ours(), before=second)) == second
    issuer.failure = UnavailableError("away")
    issuer.published = AUTHORITY.roots
    with pytest.raises(UnavailableError, match="away"):
        await issuer.source().fill(fill(tmp_path, ours(), before=second))
    issuer.published = AUTHORITY.roots + make_authority("next", NOW).roots


async def test_a_certificate_of_a_clock_that_was_ahead_is_replaced(issuer: ManualIssuer, tmp_path: Path) -> None:
    await issuer.source().fill(fill(tmp_path, ours()))
    issuer.now -= 200
    await issuer.source().fill(fill(tmp_path, ours()))
    assert len(issuer.names) == 1, "it began before"
    issuer.now -= 7200
    files = await issuer.source().fill(fill(tmp_path, ours()))
    assert len(issuer.names) == 2
    leaf = read_certificates(files.content["tls.crt"].data)[0]
    begin = AUTHORITY.chain[0].not_valid_before_utc  # no certificate begins before its authority
    assert leaf.not_valid_before_utc == begin


async def test_a_clock_set_back_does_not_delay_a_denied_request(issuer: ManualIssuer, tmp_path: Path) -> None:
    issuer.failure = CertificateDeniedError("no")
    with pytest.raises(CertificateDeniedError):
        await issuer.source().fill(fill(tmp_path, ours()))
    issuer.now, issuer.failure = issuer.now - 86400, None
    await issuer.source().fill(fill(tmp_path, ours()))
    assert len(issuer.names) == 2


async def test_a_pod_that_does_not_wait_sees_the_reason_and_the_roots(issuer: ManualIssuer, tmp_path: Path) -> None:
    source, attributes = issuer.source(), ours(wait="false")
    issuer.failure = UnavailableError("issuer ca-issuer: waiting: not yet")
    first = await source.fill(fill(tmp_path, attributes))
    assert {name: content.data for name, content in first.content.items()} == {
        "pending": b"issuer ca-issuer: waiting: not yet\n",
        "ca.crt": AUTHORITY.roots,
    }
    assert first.again == issuer.now + 1
    issuer.now += 400
    later = await source.fill(fill(tmp_path, attributes, before=first))
    assert later.again == issuer.now + 30
    assert issuer.waits == [False, False]
    issuer.failure = None
    issued = await source.fill(fill(tmp_path, attributes, before=later))
    assert sorted(issued.content) == ["ca.crt", "tls.crt", "tls.key"]
    assert len(set(issuer.names)) == 1
    issuer.failure, issuer.now = UnavailableError("away"), issued.again or 0
    with pytest.raises(UnavailableError, match="away"):  # what it has stays
        await source.fill(fill(tmp_path, attributes, before=issued))


async def test_after_the_pod_has_its_address(issuer: ManualIssuer, tmp_path: Path, kube: Client) -> None:
    source = CertificateSource(OURS, lambda reference: issuer, lambda: issuer.now, kube)
    attributes = ours(wait="false", after="pod-ip", ip_sans="$POD_IP", uri_sans="", dns_names="")
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    made = await kube.create(PODS, body, "default")
    asking = replace(pod(), namespace="default", name="p", uid=made.metadata.uid)
    first = await source.fill(fill(tmp_path, attributes, pod=asking))
    assert first.content["pending"].data == b"waiting for pod-ip of pod default/p\n"
    assert issuer.names == []
    await kube.patch(PODS, "p", {"status": {"podIPs": [{"ip": "10.0.0.7"}]}}, "default", subresource="status")
    issued = await source.fill(fill(tmp_path, attributes, pod=asking, before=first))
    leaf = read_certificates(issued.content["tls.crt"].data)[0]
    found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in found] == ["10.0.0.7"]
    await kube.delete(PODS, "p", "default", grace_seconds=0)
    assert await source.fill(fill(tmp_path, attributes, pod=asking, before=issued)) == issued
    for other in (replace(asking, uid="u"), asking):
        (folder := tmp_path / other.uid).mkdir()
        gone = await source.fill(fill(folder, attributes, pod=other))
        assert b"after: pod default/p cannot be read" in gone.content["pending"].data


class Renewals(RuleBasedStateMachine):
    """Time passes, the issuer fails, the agent restarts: what is shown is always whole."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.issuer = ManualIssuer()
        self.shown: Files | None = None

    @rule(seconds=st.sampled_from([1, 600, 1500, 4000, -900]))
    def time_passes(self, seconds: int) -> None:
        self.issuer.now += seconds

    @rule(failure=st.sampled_from([None, UnavailableError("away"), CertificateDeniedError("no")]))
    def the_issuer_changes(self, failure: TonnageError | None) -> None:
        self.issuer.failure = failure

    @rule()
    def filled(self) -> None:
        import asyncio

        request = fill(Path(self.folder.name), ours(duration="1h"), before=self.shown)
        try:
            self.shown = asyncio.run(self.issuer.source().fill(request))
        except UnavailableError:
            return
        assert self.shown.again is not None
        assert self.shown.again > self.issuer.now
        leaf = read_certificates(self.shown.content["tls.crt"].data)[0]
        assert leaf.not_valid_after_utc.timestamp() > self.issuer.now

    @invariant()
    def what_is_shown_fits(self) -> None:
        if self.shown is not None:
            content = self.shown.content
            issued = IssuedCertificate(content["tls.crt"].data, content["ca.crt"].data)
            check_issued(issued, read_key(content["tls.key"].data), 0)

    def teardown(self) -> None:
        self.folder.cleanup()


TestRenewals = Renewals.TestCase
TestRenewals.settings = examples(25, machine=True, stateful_step_count=20, deadline=None)
