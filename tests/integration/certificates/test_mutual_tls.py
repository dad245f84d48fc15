"""Two pods talk mutual TLS while their certificates are renewed, and while their authority is replaced: no handshake fails.

The files are real mounts of the inline driver; server and client read them at each connection, as a program does that
reloads its bundle.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.unit.csi.inline.cert.makers import pod

from tonnage.base.aio.clock import RealClock
from tonnage.csi.inline.cert.attributes import OURS
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority
from tonnage.csi.inline.cert.issuers.base import IssuedCertificate, IssueRequest
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.source import CertificateSource
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore
from tonnage.csi.inline.volume import InlineRequest
from tonnage.host import mount
from tonnage_box.certificates import LocalIssuer

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")]
RENEWALS = 100
NAME = "web.sandbox.svc"
ATTRIBUTES = {"issuer-name": "internal", "dns-names": NAME, "duration": "10m", "bundle-file": "bundle.pem"}


@dataclass
class ImpatientIssuer:
    """An issuer that publishes other roots at each look, so that each fill renews."""

    authority: CertificateAuthority
    looks: int = 0
    issued: list[str] = field(default_factory=list)

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        async def load() -> CertificateAuthority:
            return self.authority

        self.issued.append(request.name)
        return await LocalIssuer(load, NamePolicy(), RealClock().time).issue(request)

    async def discard(self, name: str, namespace: str) -> None:
        """Nothing to remove."""

    async def roots(self) -> bytes:
        self.looks += 1
        return b"%d" % self.looks


class Pods:
    """Two volumes of one driver: what the pods `server` and `client` see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issuer = ImpatientIssuer(make_authority("first", RealClock().time()))
        source = CertificateSource(OURS, lambda reference: self.issuer, RealClock().time)
        self.driver = InlineDriver("d.test", source, MemoryStore(folder / "mem"))

    async def publish(self) -> None:
        await self.driver.start()
        for name in ("server", "client"):
            await self.driver.publish(InlineRequest(name, str(self.folder / name), pod(), ATTRIBUTES, read_only=True))

    async def renew(self, name: str) -> None:
        before = (self.folder / name / "bundle.pem").read_bytes()
        await self.driver._renew(name)
        assert (self.folder / name / "bundle.pem").read_bytes() != before

    def context(self, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Of a connection that begins now. OpenSSL opens a file once for each part, so it gets what was read at once."""
        shown, copy = self.folder / name, self.folder / f"{name}.pem"
        context = ssl.create_default_context(purpose, cafile=str(shown / "ca.crt"))
        copy.write_bytes((shown / "bundle.pem").read_bytes())
        context.load_cert_chain(copy)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class Talk:
    """A server and a client in threads of their own, which connect again and again until they are stopped."""

    def __init__(self, pods: Pods) -> None:
        self._pods, self.shakes, self.failures = pods, 0, list[str]()
        self._quit, self._end = threading.Event(), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=run) for run in (self._serve, self._connect)]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        while not self._end.is_set():
            with suppress(OSError):
                plain, _ = self._socket.accept()
                if self._end.is_set():  # close() connected to end this
                    plain.close()
                    return
                try:
                    context = self._pods.context("server", ssl.Purpose.CLIENT_AUTH)
                    with context.wrap_socket(plain, server_side=True) as secure:
                        secure.sendall(secure.recv(100))
                except (ssl.SSLError, OSError) as failure:
                    self.failures.append(f"server: {failure}")

    def _connect(self) -> None:
        while not self._quit.is_set():
            try:
                plain = socket.create_connection(self._socket.getsockname(), timeout=20)
                context = self._pods.context("client", ssl.Purpose.SERVER_AUTH)
                with context.wrap_socket(plain, server_hostname=NAME) as secure:
                    secure.sendall(b"hello")
                    assert secure.recv(100) == b"hello"
                self.shakes += 1
            except (ssl.SSLError, OSError, AssertionError) as failure:
                self.failures.append(f"client: {failure!r}")

    async def reach(self, shakes: int) -> None:
        """Wait for so many handshakes, or for a failure."""
        async with asyncio.timeout(60):
            while self.shakes < shakes and not self.failures:
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self._quit.set()
        self._threads[1].join()
        self._end.set()  # only then: a client that has connected is served
        with suppress(OSError), closing(socket.create_connection(self._socket.getsockname(), timeout=5)):
            pass
        self._threads[0].join()
        self._socket.close()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    yield Pods(tmp_path)
    for one in reversed([one.target for one in mount.mounts() if one.target.startswith(f"{tmp_path}/")]):
        mount.umount(one, lazy=True)


async def test_a_hundred_renewals(pods: Pods) -> None:
    await pods.publish()
    talk = Talk(pods)
    try:
        for number in range(RENEWALS):
            await pods.renew("server" if number % 2 else "client")
            await talk.reach(number + 1)
    finally:
        await asyncio.to_thread(talk.close)
        await pods.driver.stop()
    assert talk.failures == []
    assert talk.shakes >= RENEWALS
    assert len(set(pods.issuer.issued)) == RENEWALS + 2


async def test_the_authority_is_replaced_in_the_documented_steps(pods: Pods) -> None:
    await pods.publish()
    first, second = pods.issuer.authority, make_authority("second", RealClock().time())
    steps = [
        CertificateAuthority((*first.chain, *second.chain), first.key),
        CertificateAuthority((*second.chain, *first.chain), second.key),
        second,
    ]
    talk = Talk(pods)
    try:
        for authority in steps:
            pods.issuer.authority = authority
            for name in ("client", "server"):
                await pods.renew(name)
                await talk.reach(talk.shakes + 5)
    finally:
        await asyncio.to_thread(talk.close)
        await pods.driver.stop()
    assert talk.failures == []
    assert (pods.folder / "server" / "ca.crt").read_bytes() == second.roots
