"""Downloads: only from allowed hosts and addresses, continued where a server breaks off, never half a file."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.unit.storage.content.server import Files, served

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.storage.content.access import Progress, StoppedError
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy, parse_host
from tonnage.storage.content.http import Fetcher, RestartError, credentials

BODY = bytes(range(256)) * 4096


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files({"/x": BODY})) as found:
        yield found


def fetcher(*hosts: str, pauses: list[float] | None = None) -> Fetcher:
    policy = FetchPolicy(tuple(map(parse_host, hosts)))
    return Fetcher(policy, sleep=(pauses if pauses is not None else []).append)


def read(found: Fetcher, url: str, **headers: str) -> bytes:
    with found.get(url, headers) as download:
        parts = []
        while part := download.read(100_000):
            parts.append(part)
        return b"".join(parts)


def test_a_file_is_read_with_its_size(files: Files) -> None:
    with fetcher(f"localhost:{files.port}").get(f"{files.url}/x") as download:
        assert download.size == len(BODY)
    assert read(fetcher(f"localhost:{files.port}"), f"{files.url}/x") == BODY


@pytest.mark.parametrize("hosts", [(), ("files.example.com",), ("localhost",), ("localhost:1",)])
def test_no_other_host_or_port_is_asked(files: Files, hosts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidError, match=r"host localhost:\d+ is not among those"):
        fetcher(*hosts).get(f"{files.url}/x")
    assert files.seen == []


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "169.254.1.1", "fe80::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200", "224.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::7f00:1", "2002:a9fe:a9fe::1", "2002:7f00:1::", "::127.0.0.1", "::a9fe:a9fe"],
)  # fmt: skip
def test_a_name_never_leads_to_the_machine_or_a_metadata_service(address: str) -> None:
    policy = FetchPolicy((AllowedHost("files.example.com"),), resolve=lambda host, port: [address])
    with pytest.raises(InvalidError, match="nothing is fetched from there"):
        Fetcher(policy).get("https://files.example.com/x")


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "::1"])
def test_an_address_that_is_listed_itself_may_be_used(address: str) -> None:
    assert FetchPolicy((parse_host(address if ":" not in address else f"[{address}]"),)).addresses(address, 80) == [
        address
    ]


@pytest.mark.parametrize("address", ["203.0.113.1", "64:ff9b::203.0.113.1", "2002:cb00:7101::1", "2001:db8::1"])
def test_a_name_may_lead_to_others(address: str) -> None:
    assert FetchPolicy((AllowedHost("h"),), resolve=lambda host, port: [address]).addresses("h", 443) == [address]


def test_one_bad_address_among_good_ones_rejects_the_name() -> None:
    policy = FetchPolicy((AllowedHost("h"),), resolve=lambda host, port: ["203.0.113.1", "127.0.0.1"])
    with pytest.raises(InvalidError, match="this machine"):
        policy.addresses("h", 443)


def test_the_checked_address_is_the_one_that_is_connected_to(files: Files) -> None:
    answers = [["127.0.0.1"], ["203.0.113.1"]]
    policy = FetchPolicy((AllowedHost("localhost", files.port),), resolve=lambda host, port: answers.pop(0))
    assert read(Fetcher(policy), f"{files.url}/x") == BODY
    assert answers == [["203.0.113.1"]], "the name was resolved once"


def test_redirects_lead_to_allowed_hosts_only(files: Files) -> None:
    files.redirects = {
        "/a": "/b",
        "/b": f"{files.url}/x",
        "/out": "http://169.254.169.254/latest",
        "/file": "file:///etc/passwd",
        "/bad": "http://[",
        "/user": "http://a:b@localhost/x",
    }
    allowed = fetcher(f"localhost:{files.port}")
    assert read(allowed, f"{files.url}/a") == BODY
    with pytest.raises(InvalidError, match=r"169\.254\.169\.254:80 is not among those"):
        allowed.get(f"{files.url}/out")
    for path in ("/file", "/bad", "/user"):
        with pytest.raises(InvalidError, match="redirects to"):
            allowed.get(f"{files.url}{path}")
    files.redirects = {"/loop": "/loop"}
    with pytest.raises(InvalidError, match="more than 5 redirects"):
        allowed.get(f"{files.url}/loop")


def test_credentials_stay_with_the_host_that_they_are_for(files: Files) -> None:
    headers = credentials({"username": "me", "password": "secret"})
    files.auth = headers["Authorization"]
    assert read(fetcher(f"localhost:{files.port}"), f"{files.url}/x", **headers) == BODY
    with served(Files({"/x": BODY}, redirects={})) as other:
        files.redirects = {"/away": f"{other.url}/x"}
        assert (
            read(fetcher(f"localhost:{files.port}", f"localhost:{other.port}"), f"{files.url}/away", **headers) == BODY
        )
        assert "authorization" not in other.seen[0][1]
    files.auth = "other"
    with pytest.raises(InvalidError, match="403 Forbidden: the Secret") as rejected:
        fetcher(f"localhost:{files.port}").get(f"{files.url}/x", headers)
    assert "secret" not in str(rejected.value).replace("Secret", "")
    with pytest.raises(InvalidError, match="line break"):
        credentials({"token": "a\r\nHost: b"})


@pytest.mark.parametrize("value", ["T0PS3CRET\n", "T0PS3CRET\u20ac"])
def test_a_header_that_cannot_be_sent_is_not_shown(files: Files, value: str) -> None:
    with pytest.raises(InvalidError, match="no request may have") as rejected:
        fetcher(f"localhost:{files.port}").get(f"{files.url}/x", {"X-Token": value})
    assert "T0PS3CRET" not in str(rejected.value)
    assert rejected.value.__suppress_context__


def test_a_download_is_continued_where_it_broke_off(files: Files) -> None:
    files.breaks = [1000, 0, 70_000]
    pauses: list[float] = []
    assert read(fetcher(f"localhost:{files.port}", pauses=pauses), f"{files.url}/x") == BODY
    ranges = [headers.get("range") for _, headers in files.seen]
    assert ranges == [None, "bytes=1000-", "bytes=1000-", "bytes=71000-"]
    assert len(pauses) == 3


def test_another_version_is_never_joined_to_what_was_read(files: Files) -> None:
    files.breaks, files.changes = [1000], lambda: files.files.update({"/x": BODY[::-1]})
    with pytest.raises(RestartError, match="does not continue"):
        read(fetcher(f"localhost:{files.port}"), f"{files.url}/x")


def test_a_server_that_cannot_continue_is_asked_from_the_beginning(files: Files) -> None:
    files.breaks, files.resumes = [1000], False
    with pytest.raises(RestartError, match="broke off after 1000 bytes"):
        read(fetcher(f"localhost:{files.port}"), f"{files.url}/x")


def test_a_server_that_gives_nothing_is_given_up(files: Files) -> None:
    files.breaks = [10, *[0] * 20]
    pauses: list[float] = []
    with pytest.raises(RestartError, match="broke off after 10 bytes"):
        read(fetcher(f"localhost:{files.port}", pauses=pauses), f"{files.url}/x")
    assert len(pauses) == 5


def test_a_server_that_drips_is_given_up(files: Files) -> None:
    found = fetcher(f"localhost:{files.port}")
    now = 0.0
    found.monotonic = lambda: now
    with found.get(f"{files.url}/x") as download:
        now = 599.0
        assert download.read(1000)
        now = 600.0
        with pytest.raises(UnavailableError, match="slower than 1024 bytes a second"):
            download.read(1000)
    found = fetcher(f"localhost:{files.port}")
    found.monotonic = lambda: now
    with found.get(f"{files.url}/x") as download:
        while download.read(100_000):
            now += 60.0
    assert download.count == len(BODY)


@pytest.mark.parametrize(("status", "kind"), [(404, InvalidError), (401, InvalidError), (500, UnavailableError), (503, UnavailableError), (429, UnavailableError)])  # fmt: skip
def test_answers_say_whether_to_try_again(files: Files, status: int, kind: type[Exception]) -> None:
    files.status = [status]
    with pytest.raises(kind, match=str(status)):
        fetcher(f"localhost:{files.port}").get(f"{files.url}/x")


def test_a_host_that_is_away_is_tried_again_later(files: Files) -> None:
    with served(Files()) as gone:
        pass
    with pytest.raises(UnavailableError, match="no answer"):
        fetcher(f"localhost:{gone.port}").get(f"{gone.url}/x")


def test_certificates_are_verified(tmp_path: Path) -> None:
    certificate, key = made_certificate("localhost", tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    with served(Files({"/x": BODY}), server) as files:
        url = f"https://localhost:{files.port}/x"
        policy = FetchPolicy((AllowedHost("localhost", files.port), AllowedHost("127.0.0.1", files.port)))
        trusting = Fetcher(policy, tls=ssl.create_default_context(cafile=str(certificate)))
        assert read(trusting, url) == BODY
        assert files.seen[0][1]["host"] == f"localhost:{files.port}"
        with pytest.raises(InvalidError, match="its certificate is not valid here"):
            Fetcher(policy).get(url)
        with pytest.raises(InvalidError, match="its certificate is not valid here"):
            trusting.get(url.replace("localhost", "127.0.0.1"))
        files.redirects = {"/down": f"http://localhost:{files.port}/x"}
        with pytest.raises(InvalidError, match="without encryption"):
            trusting.get(url.replace("/x", "/down"))


def made_certificate(name: str, folder: Path) -> tuple[Path, Path]:
    """A certificate that nobody but its files vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "cert", folder / "key"


@pytest.mark.parametrize("text", ["", "*.example.com", "http://h", "h:0", "h:x", "h:", "h:99999", "a b", "-h"])
def test_an_option_that_names_no_host_is_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match="want HOST or HOST:PORT"):
        parse_host(text)


def test_a_stop_just_before_the_connection_is_made_ends_it(files: Files) -> None:
    """Nothing can be shut down then: the connection has to be looked at again once it is there."""
    progress = Progress("x")
    files.hold = threading.Event()
    seen: list[socket.socket] = []

    def watch(connection: socket.socket) -> None:
        progress.watch(connection)
        if not seen:
            progress.halt()
        seen.append(connection)

    found = Fetcher(FetchPolicy((parse_host(f"localhost:{files.port}"),)), watch=watch)
    with pytest.raises(StoppedError):
        found.get(f"{files.url}/x")
    assert files.seen == []
