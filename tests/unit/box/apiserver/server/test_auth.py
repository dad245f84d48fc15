"""The certificate, the token and the kubeconfig."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import HostError
from tonnage_box.apiserver.server import auth


class Later(RealClock):
    """Nine years and eleven months on, twenty days before the certificate ends."""

    def time(self) -> float:
        return super().time() + 3630 * 86400


def test_credentials_are_made_once_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "auth"
    first = auth.ensure(folder, RealClock())
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    assert auth.ensure(folder, RealClock()) == first
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before
    assert {stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(first.token) >= 32
    assert first.ssl_context()


@pytest.mark.parametrize("damage", ["certificate", "key", "expiry", "host"])
def test_what_does_not_serve_is_made_anew(tmp_path: Path, damage: str) -> None:
    first = auth.ensure(tmp_path, RealClock())
    before = first.certificate.read_bytes()
    clock = Later() if damage == "expiry" else RealClock()
    hosts = ("box.example", "192.0.2.1") if damage == "host" else ()
    if damage in ("certificate", "key"):
        (first.certificate if damage == "certificate" else first.key).write_bytes(b"cut off")
    again = auth.ensure(tmp_path, clock, hosts)
    after = again.certificate.read_bytes()
    assert after != before
    assert again.token == first.token
    names = x509.load_pem_x509_certificate(after).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "127.0.0.1", *hosts} <= {str(n.value) for n in names}
    assert again.ssl_context()


def test_a_key_of_another_certificate_is_noticed(tmp_path: Path) -> None:
    one, other = auth.ensure(tmp_path / "a", RealClock()), auth.ensure(tmp_path / "b", RealClock())
    one.key.write_bytes(other.key.read_bytes())
    assert auth.ensure(tmp_path / "a", RealClock()).ssl_context()


def test_only_the_token_opens(tmp_path: Path) -> None:
    credentials = auth.ensure(tmp_path, RealClock())
    assert credentials.is_token(credentials.token)
    for wrong in ("", "x", f"{credentials.token}x", "\udcff"):
        assert not credentials.is_token(wrong)


def test_the_kubeconfig_is_private_and_complete(tmp_path: Path) -> None:
    credentials = auth.ensure(tmp_path / "auth", RealClock())
    path = tmp_path / "kube" / "config"
    for url in ("https://127.0.0.1:1", "https://127.0.0.1:6443"):
        auth.write_kubeconfig(path, url, credentials)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [f.name for f in path.parent.iterdir()] == ["config"]
    config = yaml.safe_load(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert config["users"][0]["user"]["token"] == credentials.token
    assert config["current-context"] == config["contexts"][0]["name"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files away")
def test_the_kubeconfig_of_another_user_and_its_new_folders_are_theirs(tmp_path: Path) -> None:
    credentials = auth.ensure(tmp_path / "auth", RealClock())
    auth.write_kubeconfig(tmp_path / "a" / "b" / "config", "https://127.0.0.1:1", credentials, 12345)
    assert {(tmp_path / name).stat().st_uid for name in ("a", "a/b", "a/b/config")} == {12345}
    assert tmp_path.stat().st_uid == 0


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="certificate and token"):
        auth.ensure(tmp_path / "file" / "auth", RealClock())
