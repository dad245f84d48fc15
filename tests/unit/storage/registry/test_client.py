"""A registry's client: allowed hosts only, credentials to the registry alone, digests checked, broken downloads continued."""

import base64
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.content.server import Files, served
from tests.unit.storage.content.test_http import made_certificate
from tests.unit.storage.registry.images import asked, entry, layer_paths, put, put_index

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, TonnageError, UnavailableError
from tonnage.storage.content.access import Progress
from tonnage.storage.content.http import RestartError
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.manifest import Platform
from tonnage.storage.registry.client import RegistryAccess, RegistryClient, parse_access
from tonnage.storage.registry.login import CONFIG_JSON, RegistryLogin
from tonnage_box.testing.image_archive import LayerTar

HERE = manifest.machine()
LAYER = LayerTar().add("a", bytes(range(256)) * 2000).data()
BEARER = 'Bearer realm="{url}/token",service="reg",scope="repository:other:push"'


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files()) as found:
        put(found, "team/app", "1", LAYER)
        yield found


def client(
    files: Files, image: str = "team/app:1", *, login: RegistryLogin | None = None, pauses: list[float] | None = None
) -> RegistryClient:
    found = parse_access((f"http://localhost:{files.port}",))
    access = RegistryAccess(found.hosts, found.plain, sleep=(pauses if pauses is not None else []).append)
    return RegistryClient(reference.parse(f"localhost:{files.port}/{image}"), access, Progress(image), login)


def download(found: RegistryClient, tmp_path: Path) -> bytes:
    (layer,) = found.resolve(HERE).manifest.layers
    found.download(layer, tmp_path / "blob")
    return (tmp_path / "blob").read_bytes()


def test_an_image_by_tag_and_by_digest(files: Files, tmp_path: Path) -> None:
    found = client(files).resolve(HERE)
    assert found.name == f"localhost:{files.port}/team/app:1"
    assert found.config.rootfs.diff_ids
    (path,) = layer_paths(files)
    assert download(client(files), tmp_path) == files.files[path]
    other = client(files, f"team/app@{found.digest}").resolve(HERE)
    assert (other.digest, other.name) == (found.digest, f"localhost:{files.port}/team/app@{found.digest}")
    assert {"manifest.v1+json", "manifest.list.v2+json"} <= {
        kind.rpartition(".docker.distribution.")[2].rpartition(".oci.image.")[2]
        for kind in asked(files, "/manifests/")[0]["accept"].split(", ")
    }


def test_an_index_leads_to_the_platform(files: Files) -> None:
    one = put(files, "team/app", "one", LAYER)
    other = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f"sha256:{'0' * 64}", "size": 1}
    ours = entry(files, "team/app", one, os=HERE.os, architecture=HERE.architecture)
    digest = put_index(files, "team/app", "multi", {**other, "platform": {"os": "linux", "architecture": "mips"}}, ours)
    assert client(files, "team/app:multi").resolve(HERE).digest == one
    pinned = client(files, f"team/app@{digest}").resolve(HERE)
    assert (pinned.digest, pinned.name) == (one, f"localhost:{files.port}/team/app@{digest}")
    with pytest.raises(NotFoundError, match="no manifest for linux/riscv64"):
        client(files, "team/app:multi").resolve(Platform("riscv64", "linux"))
    with pytest.raises(NotFoundError, match=r"it is for .*, wanted linux/riscv64"):
        client(files).resolve(Platform("riscv64", "linux"))


def test_indexes_have_a_depth(files: Files) -> None:
    digest = put(files, "team/app", "x", LAYER)
    for _ in range(manifest.MAX_DEPTH + 1):
        digest = put_index(files, "team/app", "deep", entry(files, "team/app", digest))
    with pytest.raises(InvalidError, match="nested deeper than 4"):
        client(files, "team/app:deep").resolve(HERE)


def test_a_registry_that_is_not_listed_is_not_asked(files: Files) -> None:
    access = parse_access(("registry.example",))
    with pytest.raises(PreconditionError, match=r"does not pull from registry localhost:.*listed: registry.example.*"):
        RegistryClient(reference.parse(f"localhost:{files.port}/team/app"), access, Progress("x"))
    assert files.seen == []


@pytest.mark.parametrize("login", [None, RegistryLogin("me", "word")])
def test_a_token_is_fetched_as_the_registry_says(files: Files, tmp_path: Path, login: RegistryLogin | None) -> None:
    files.challenge, files.token, files.auth = BEARER, "t0ken", "Bearer t0ken"
    files.basic = login.header if login else ""
    assert download(client(files, login=login), tmp_path)
    ((path, _),) = [seen for seen in files.seen if seen[0].startswith("/token")]
    assert path == "/token?service=reg&scope=repository%3Ateam%2Fapp%3Apull"
    assert len(asked(files, "/v2/")) == 4  # the first is answered with 401; then all have the token


def test_a_token_is_renewed_before_it_ends(files: Files, tmp_path: Path) -> None:
    files.challenge, files.token, files.auth = BEARER, "t0ken", "Bearer t0ken"
    found = client(files)
    now = 0.0
    found.monotonic = lambda: now
    (layer,) = found.resolve(HERE).manifest.layers
    now = 59.0
    files.token, files.auth = "newer", "Bearer newer"
    found.download(layer, tmp_path / "blob")
    assert len(asked(files, "/token")) == 2


def test_basic_authentication(files: Files, tmp_path: Path) -> None:
    login = RegistryLogin("me", "word")
    files.challenge, files.auth = 'Basic realm="reg"', login.header
    assert download(client(files, login=login), tmp_path)
    with pytest.raises(PreconditionError, match="it may need a pull secret: see nodePublishSecretRef"):
        client(files).resolve(HERE)
    with pytest.raises(PreconditionError, match="its pull secret has no right to it") as rejection:
        client(files, login=RegistryLogin("me", "s3cret")).resolve(HERE)
    assert "s3cret" not in str(rejection.value)


def test_no_credentials_without_a_challenge(files: Files, tmp_path: Path) -> None:
    download(client(files, login=RegistryLogin("me", "word")), tmp_path)
    assert not any("authorization" in headers for _, headers in files.seen)


@pytest.mark.parametrize(
    ("body", "why"), [(b"s3cret", "answers no token"), (b'{"token": "s3cret\\n"}', "no token"), (b"{}", "no token")]
)
def test_a_token_server_that_answers_no_token(files: Files, body: bytes, why: str) -> None:
    files.challenge, files.auth = 'Bearer realm="{url}/other"', "Bearer x"
    with served(Files({"/other": body})) as tokens:
        files.challenge = f'Bearer realm="{tokens.url}/other"'
        found = parse_access((f"http://localhost:{files.port}", f"localhost:{tokens.port}"))
        asking = RegistryClient(reference.parse(f"localhost:{files.port}/team/app:1"), found, Progress("x"))
        with pytest.raises(InvalidError, match=why) as rejection:
            asking.resolve(HERE)
    assert "s3cret" not in str(rejection.value)


def test_a_token_server_that_is_not_listed_gets_no_credentials(files: Files) -> None:
    with served(Files()) as tokens:
        files.challenge = f'Bearer realm="{tokens.url}/token"'
        with pytest.raises(InvalidError, match="is not among those"):
            client(files, login=RegistryLogin("me", "word")).resolve(HERE)
        assert tokens.seen == []


def test_a_redirect_takes_no_credentials_to_another_host(files: Files, tmp_path: Path) -> None:
    files.challenge, files.token, files.auth = BEARER, "t0ken", "Bearer t0ken"
    (path,) = layer_paths(files)
    with served(Files({"/blob": files.files[path]})) as other:
        files.redirects[path] = f"http://127.0.0.1:{other.port}/blob"
        access = parse_access((f"http://localhost:{files.port}", f"127.0.0.1:{other.port}"))
        found = RegistryClient(reference.parse(f"localhost:{files.port}/team/app:1"), access, Progress("x"))
        assert download(found, tmp_path)
        assert "authorization" not in other.seen[0][1]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("169.254.169.254", "169.254.169.254"),
        ("127.0.0.1", "127.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("cdn.example", "127.0.0.1"),
        ("cdn.example", "169.254.0.1"),
        ("cdn.example", "192.168.1.1"),
        ("cdn.example", "fd00::1"),
        ("cdn.example", "64:ff9b::10.0.0.1"),
    ],
)
def test_a_redirect_never_leads_into_the_network_of_the_node(files: Files, host: str, address: str) -> None:
    (path,) = layer_paths(files)
    files.redirects[path] = f"https://{host}/blob"
    access = parse_access((f"http://localhost:{files.port}",))
    inner = RegistryAccess(
        access.hosts, access.plain, resolve=lambda name, _: [address if name == host else "127.0.0.1"]
    )
    found = RegistryClient(reference.parse(f"localhost:{files.port}/team/app:1"), inner, Progress("x"))
    (layer,) = found.resolve(HERE).manifest.layers
    with pytest.raises(InvalidError, match="nothing is fetched from there"):
        found.download(layer, Path("/nowhere/blob"))


def test_a_public_host_may_be_redirected_to_on_443_only() -> None:
    access = RegistryAccess(resolve=lambda *_: ["8.8.8.8"])
    assert access.policy.addresses("cdn.example", 443) == ["8.8.8.8"]
    with pytest.raises(InvalidError, match="not among those"):
        access.policy.addresses("cdn.example", 8443)


@pytest.mark.parametrize("has_etag", [True, False])
def test_a_broken_download_is_continued(files: Files, tmp_path: Path, has_etag: bool) -> None:
    files.has_etag = has_etag
    found = client(files)
    (layer,) = found.resolve(HERE).manifest.layers
    files.breaks = [100, 50]
    found.download(layer, tmp_path / "blob")
    assert (tmp_path / "blob").stat().st_size == layer.size == found.progress.done
    assert [headers.get("range") for headers in asked(files, layer.digest)] == [None, "bytes=100-", "bytes=150-"]


def test_a_download_that_cannot_be_continued_is_begun_again(files: Files, tmp_path: Path) -> None:
    files.resumes = False
    found = client(files)
    (layer,) = found.resolve(HERE).manifest.layers
    files.breaks = [100, 0]
    found.download(layer, tmp_path / "blob")
    assert (tmp_path / "blob").stat().st_size == layer.size == found.progress.done
    files.breaks = [100, 0, 100, 0, 100, 0]
    with pytest.raises(RestartError):
        found.download(layer, tmp_path / "blob")


def test_retry_after_is_waited_for(files: Files, tmp_path: Path) -> None:
    pauses: list[float] = []
    files.status, files.retry_after = [429, 503], "7"
    assert download(client(files, pauses=pauses), tmp_path)
    assert pauses == [7.0, 7.0]
    files.status, files.retry_after = [429], "3600"
    with pytest.raises(UnavailableError, match="429"):
        client(files).resolve(HERE)
    files.status, files.retry_after = [503] * 4, "1"
    with pytest.raises(UnavailableError, match="503"):
        client(files).resolve(HERE)


def test_damaged_content_is_rejected(files: Files, tmp_path: Path) -> None:
    found = client(files)
    remote = found.resolve(HERE)
    (layer,) = remote.manifest.layers
    (path,) = layer_paths(files)
    whole = files.files[path]
    for data, why in ((whole[:-1] + b"x", "it is damaged"), (whole + b"x", "longer than"), (whole[:-1], "truncated")):
        files.files[path] = data
        with pytest.raises(InvalidError, match=why):
            found.download(layer, tmp_path / "blob")
    for key in [key for key in files.files if "/manifests/" in key]:
        files.files[key] += b" "
    with pytest.raises(InvalidError, match="it is damaged"):
        client(files, f"team/app@{remote.digest}").resolve(HERE)


def test_documents_have_limits(files: Files) -> None:
    files.files["/v2/team/app/manifests/big"] = b" " * (manifest.MAX_MANIFEST + 1)
    with pytest.raises(InvalidError, match="longer than its size of 4194304 bytes"):
        client(files, "team/app:big").resolve(HERE)


@pytest.mark.parametrize(
    ("status", "kind", "why"),
    [
        (403, PreconditionError, "it may need a pull secret"),
        (404, NotFoundError, "it is not in its registry"),
        (500, UnavailableError, "answers 500"),
        (400, InvalidError, "answers 400"),
    ],
)
def test_rejections_of_the_registry(files: Files, status: int, kind: type[TonnageError], why: str) -> None:
    files.status = [status]
    with pytest.raises(kind, match=why):
        client(files).resolve(HERE)


def test_what_is_no_image_is_rejected(files: Files) -> None:
    for body in (b"[]", b"{", json.dumps({"schemaVersion": 1}).encode(), b"\xff"):
        files.files["/v2/team/app/manifests/bad"] = body
        with pytest.raises(TonnageError):
            client(files, "team/app:bad").resolve(HERE)


def test_registries_of_an_option() -> None:
    access = parse_access(("docker.io", "registry.example:5000", "http://plain.example"))
    assert access.allows(reference.parse("busybox"))
    assert access.origin(reference.parse("busybox")) == "https://registry-1.docker.io"
    assert access.allows(reference.parse("registry.example:5000/a"))
    assert not access.allows(reference.parse("registry.example/a"))
    assert access.origin(reference.parse("plain.example/a")) == "http://plain.example"
    for text in ("", "https://x", "a/b", "http://", "*.example"):
        with pytest.raises(InvalidError, match=re.escape(f"registry {text!r}")):
            parse_access((text,))
    access = parse_access(("docker.io",), Path("/nowhere/ca.pem"))
    with pytest.raises(InvalidError, match=r"certificates /nowhere/ca.pem: cannot be read"):
        RegistryClient(reference.parse("busybox"), access, Progress("x"))


def test_no_secret_in_a_repr(files: Files) -> None:
    found = client(files, login=RegistryLogin("me", "s3cret"))
    assert base64.b64encode(b"me:s3cret").decode() not in repr(found)
    assert "s3cret" not in repr(found)


def test_a_registry_with_an_authority_of_its_own(tmp_path: Path) -> None:
    certificate, key = made_certificate("localhost", tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    with served(Files(), server) as files:
        put(files, "team/app", "1", LAYER)
        image = reference.parse(f"localhost:{files.port}/team/app:1")
        trusting = parse_access((f"localhost:{files.port}",), certificate)
        assert RegistryClient(image, trusting, Progress("x")).resolve(HERE).digest
        with pytest.raises(InvalidError, match="its certificate is not valid here"):
            RegistryClient(image, parse_access((f"localhost:{files.port}",)), Progress("x")).resolve(HERE)
        files.challenge = f'Bearer realm="http://localhost:{files.port}/token"'
        with pytest.raises(InvalidError, match="token server without encryption"):
            RegistryClient(image, trusting, Progress("x")).resolve(HERE)


def test_a_mirror_is_asked_in_place_of_its_registry_and_gets_its_own_login_only(files: Files) -> None:
    mirror = f"localhost:{files.port}"
    access = parse_access((), mirrors=(f"docker.io=http://{mirror}",))
    image = reference.parse("team/app:1")
    secrets = {CONFIG_JSON: json.dumps({"auths": {"docker.io": {"username": "hub", "password": "s"}}})}
    assert access.allows(image)
    assert not access.allows(reference.parse("registry.example/team/app:1"))
    assert access.login(image, secrets) is None
    found = access.client(image, None).resolve(HERE)
    assert found.name == "docker.io/team/app:1"
    own = {CONFIG_JSON: json.dumps({"auths": {mirror: {"username": "me", "password": "s"}}})}
    assert access.login(image, own) == RegistryLogin("me", "s")
    for text in ("docker.io", "=x", "docker.io=", "docker.io=a b"):
        with pytest.raises(InvalidError):
            parse_access((), mirrors=(text,))
