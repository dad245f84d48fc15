"""S3: the published vectors of Signature Version 4, and a server that checks signatures by itself."""

from __future__ import annotations

import io
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.storage.content.server import Files, is_signed, served

from tonnage.base.errors import InvalidError
from tonnage.storage.content import s3
from tonnage.storage.content.access import Progress, StoppedError
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy
from tonnage.storage.content.http import Fetcher
from tonnage.storage.content.s3 import S3Keys
from tonnage.storage.content.spec import S3Spec
from tonnage.storage.images.stream import read_blob

KEYS = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
THEN = datetime(2013, 5, 24, tzinfo=UTC)
BASE = "https://examplebucket.s3.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "more", "signature"),
    [
        # "Example: GET Object", "GET Bucket Lifecycle" and "List Objects" of the Amazon S3 API reference,
        # "Signature Calculations for the Authorization Header: single chunk".
        ("/test.txt", {"range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle=", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_the_published_examples(url: str, more: dict[str, str], signature: str) -> None:
    headers = s3.signed("GET", BASE + url, KEYS, "us-east-1", THEN, more)
    assert headers["Authorization"].endswith(f",Signature={signature}")


def test_a_token_is_signed_too() -> None:
    keys = S3Keys("a", "b", "token")
    headers = s3.signed("GET", "https://h/buk/k", keys, "eu-1", THEN)
    assert headers["x-amz-security-token"] == "token"
    arrived = {key.lower(): value for key, value in headers.items()} | {"host": "h"}
    assert is_signed(("a", "b"), "GET", "/buk/k", arrived)
    assert not is_signed(("a", "b"), "GET", "/buk/k2", arrived)
    assert not is_signed(("a", "c"), "GET", "/buk/k", arrived)


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_prefix_is_listed_page_by_page(page: int) -> None:
    names = ["p/a b", "p/ü+&=~", "p/x/y", "q/other", "p/"]
    files = Files({f"/buk/{name}": b"12345" for name in names}, keys=("a", "b"), page=page)
    with served(files):
        fetcher = Fetcher(FetchPolicy((AllowedHost("localhost", files.port),)))
        content = S3Spec(files.url, "buk", prefix="p/")
        sign = s3.signer(S3Keys("a", "b"), "us-east-1", lambda: datetime.now(UTC))
        found = list(s3.listed(fetcher, content, sign, Progress("x")))
        assert sorted(item.key for item in found) == sorted(name for name in names if name.startswith("p/"))
        for item in found:
            with fetcher.get(s3.url_of(content, item.key), sign=sign) as download:
                assert read_blob(download, "x", most=5) == b"12345"
        with pytest.raises(InvalidError, match="403"):
            list(s3.listed(fetcher, content, s3.signer(S3Keys("a", "wrong"), "us-east-1", lambda: THEN), Progress("x")))
        with pytest.raises(InvalidError, match="403"):
            list(s3.listed(fetcher, content, None, Progress("x")))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><a/>',
        b"<a><Contents><Key>x</Key><Size>many</Size></Contents></a>",
        b"<a><Contents><Size>1</Size></Contents></a>",
        b"<a><Contents><Key>x</Key><Size>-1</Size></Contents></a>",
        b"<a><Contents><Key>%b</Key><Size>1</Size></Contents></a>" % (b"k" * 1025),
        b"<a><Contents><Key>k</Key><Size>1</Size><ETag>%b</ETag></Contents></a>" % (b"k" * 1025),
        b"<a><IsTruncated>true</IsTruncated></a>",
        "<?xml version='1.0' encoding='utf-16'?><a></a>".encode("utf-16"),
        "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a></a>".encode("utf-16"),
        b"\xff",
    ],
)
def test_a_list_that_makes_no_sense_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidError, match="the list of the bucket"):
        s3._page(body, "s3://buk/p")


class Endless(Fetcher):
    """A server whose list goes on and on without an object."""

    pages = 0
    progress: Progress | None = None

    def get(self, *_: object, **__: object) -> Any:
        self.pages += 1
        if self.progress is not None:
            self.progress.halt()
        return closing(
            io.BytesIO(b"<a><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></a>")
        )


def test_a_list_without_an_end_is_given_up_or_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    content = S3Spec("http://localhost", "buk", prefix="p/")
    server = Endless(FetchPolicy())
    monkeypatch.setattr(s3, "_MOST_PAGES", 100)
    with pytest.raises(InvalidError, match="more than 100 pages"):
        list(s3.listed(server, content, None, Progress("x")))
    assert server.pages == 100
    monkeypatch.setattr(s3, "_MOST_HELD", 5)
    with served(Files({"/buk/p/a": b"", "/buk/p/b": b""}, page=1)) as files:
        fetcher = Fetcher(FetchPolicy((AllowedHost("localhost", files.port),)))
        with pytest.raises(InvalidError, match="more than 5 characters"):
            list(s3.listed(fetcher, S3Spec(files.url, "buk", prefix="p/"), None, Progress("x")))
    stopped = Endless(FetchPolicy())
    stopped.progress = Progress("x")
    with pytest.raises(StoppedError):
        list(s3.listed(stopped, content, None, stopped.progress))
    assert stopped.pages == 1


def test_keys_of_a_secret_come_in_pairs() -> None:
    assert s3.keys_of({}) is None
    assert s3.keys_of({"accessKey": "a", "secretKey": "b"}) == S3Keys("a", "b")
    with pytest.raises(InvalidError, match="both accessKey and secretKey"):
        s3.keys_of({"accessKey": "a"})


@pytest.mark.parametrize("key", ["accessKey", "secretKey", "sessionToken"])
def test_a_line_break_in_a_key_is_told_without_it(key: str) -> None:
    with pytest.raises(InvalidError, match="line break") as rejected:
        s3.keys_of({"accessKey": "a", "secretKey": "b", key: "T0PS3CRET\n"})
    assert "T0PS3CRET" not in str(rejected.value)
