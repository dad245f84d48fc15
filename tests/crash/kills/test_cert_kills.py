"""The certificate driver, killed before each system call of publishing, renewing and unpublishing a pod's certificate."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.crash.kills.inline_campaign import kill_at_each_step
from tests.unit.csi.inline.cert.makers import ours, pod

from tonnage.base.aio.clock import RealClock
from tonnage.csi.inline.cert.attributes import OURS
from tonnage.csi.inline.cert.authority import read_authority, read_certificates
from tonnage.csi.inline.cert.contents import check_issued
from tonnage.csi.inline.cert.issuers.base import IssuedCertificate, IssueRequest
from tonnage.csi.inline.cert.keys import read_key
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.source import CertificateSource
from tonnage.csi.inline.cert.state import load_state, save_state
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore
from tonnage.csi.inline.volume import InlinePhase, InlineRequest
from tonnage.host import mount
from tonnage_box.certificates import LocalIssuer

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("rooted", "traced")]
_SECONDS, _MOST = 500, 600
_FILES = ("ca.crt", "tls.crt", "tls.key")


@dataclass
class RecordingIssuer:
    """Signs in this process, and records names and keys of requests in files that outlive it."""

    folder: Path
    authority: Path

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        with (self.folder / "asked").open("a") as file:
            file.write(f"{request.name}\n")

        async def load():  # type: ignore[no-untyped-def]
            return read_authority(*((self.authority / name).read_bytes() for name in ("tls.crt", "tls.key")))

        return await LocalIssuer(load, NamePolicy(), RealClock().time).issue(request)

    async def discard(self, name: str, namespace: str) -> None:
        """Nothing to remove."""

    async def roots(self) -> bytes:
        return b""

    def names(self) -> set[str]:
        """Of all requests so far."""
        file = self.folder / "asked"
        return set(file.read_text().split()) if file.exists() else set()


@dataclass
class CertificateLife:
    """One certificate's volume below a folder; each call is a new process."""

    folder: Path
    authority: Path

    @property
    def target(self) -> Path:
        return self.folder / "pods" / "t"

    def driver(self) -> InlineDriver:
        source = CertificateSource(OURS, lambda reference: self.issuer(), RealClock().time)
        return InlineDriver("d.test", source, MemoryStore(self.folder / "mem", 2 << 20))

    def issuer(self) -> RecordingIssuer:
        return RecordingIssuer(self.folder, self.authority)

    def request(self) -> InlineRequest:
        return InlineRequest("csi-1", str(self.target), pod(), ours(bundle_file="bundle.pem"), read_only=True)

    async def publish(self) -> None:
        driver = self.driver()
        await driver.start()
        await driver.publish(self.request())
        await driver.stop()

    async def age(self) -> None:
        """Make the certificate one that is to be renewed."""
        folder = MemoryStore(self.folder / "mem").source("csi-1")
        state = load_state(folder)
        assert state is not None
        save_state(folder, msgspec.structs.replace(state, renew=1.0))

    async def renew(self) -> None:
        driver = self.driver()
        await driver.start()
        await driver._renew("csi-1")
        await driver.stop()

    async def unpublish(self) -> None:
        driver = self.driver()
        await driver.start()
        await driver.unpublish("csi-1", str(self.target))
        await driver.stop()

    async def check(self, most_names: int, *, is_over: bool) -> None:
        """The next process has one whole certificate, has asked no more than once for it, and removes all of it."""
        driver = self.driver()
        await driver.start()
        if not is_over:
            await driver.publish(self.request())
            self.check_files()
            await driver._renew("csi-1")
            self.check_files()
            assert sum(one.target == str(self.target) for one in mount.mounts()) == 1
            assert len(self.issuer().names()) <= most_names, "asked twice for one certificate"
            assert [r.phase for r in driver.store.records()] == [InlinePhase.SHOWN]
        await driver.unpublish("csi-1", str(self.target))
        assert os.listdir(self.folder / "mem") == []
        assert not mount.is_mount(self.target)
        await driver.stop()

    def check_files(self) -> None:
        ca, chain, key = ((self.target / name).read_bytes() for name in _FILES)
        check_issued(IssuedCertificate(chain, ca), read_key(key), RealClock().time())
        assert (self.target / "bundle.pem").read_bytes() == key + chain
        assert len(read_certificates(chain)) == 1


def keys_on_disk(folder: Path) -> list[str]:
    """Files that hold a private key and are on no tmpfs."""
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path) / name
            if file.is_file() and b"PRIVATE KEY" in file.read_bytes():
                found.append(str(file))
    return found


@pytest.mark.parametrize(("phase", "names"), [("publish", 1), ("renew", 2), ("unpublish", 1)])
def test_a_kill_before_any_step_loses_and_leaves_no_certificate(
    tmp_path: Path, phase: str, names: int, tell: Callable[[str], None]
) -> None:
    from tonnage.csi.inline.cert.authority import make_authority, secret_data

    authority = tmp_path / "authority"
    authority.mkdir()
    for name, data in secret_data(make_authority("test", RealClock().time())).items():
        (authority / name).write_bytes(data)

    async def check(life: CertificateLife) -> None:
        await life.check(names, is_over=phase == "unpublish")

    kills = kill_at_each_step(
        tmp_path,
        partial(CertificateLife, authority=authority),
        phase,
        check,
        before={"publish": [], "renew": ["publish", "age"], "unpublish": ["publish"]}[phase],
        after=lambda life: keys_on_disk(life.folder),
        most=_MOST,
        seconds=_SECONDS,
    )
    assert kills > 5
    tell(f"certificate driver killed at each of {kills} steps of {phase}")
