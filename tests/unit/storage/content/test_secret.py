"""Which hosts get a class's credentials for a Content that someone else wrote."""

from __future__ import annotations

import pytest
from tests.checks import raises_nothing

from tonnage.base.errors import InvalidError
from tonnage.storage.content.secret import check_hosts
from tonnage.storage.content.spec import ContentSpec, FolderSpec, ImageSpec, S3Spec, UrlSpec


def url(text: str) -> UrlSpec:
    return UrlSpec(text, "0" * 64)


def s3(endpoint: str) -> S3Spec:
    return S3Spec(endpoint, "buk", key="k")


@pytest.mark.parametrize(
    ("hosts", "content"),
    [
        ("a.example.com", url("https://a.example.com/x")),
        ("other A.example.com:443", url("https://a.example.com/x")),
        ("a.example.com:8443", s3("https://a.example.com:8443")),
        ("http://a.example.com", url("http://a.example.com:80/x")),
        ("http://a.example.com:81\n", s3("http://a.example.com:81")),
        ("[fd00::1]:8443", url("https://[fd00::1]:8443/x")),
        ("", ImageSpec("a:1")),
        ("", FolderSpec("models")),
    ],
)
def test_hosts_that_the_secret_names_get_it(hosts: str, content: ContentSpec) -> None:
    with raises_nothing():
        check_hosts(content, {"token": "t0ps3cret", "accessKey": "a", "secretKey": "b", "hosts": hosts})


@pytest.mark.parametrize(
    ("hosts", "content", "word"),
    [
        (None, url("https://a.example.com/x"), "'a.example.com'"),
        ("", url("https://a.example.com:8443/x"), "'a.example.com:8443'"),
        ("a.example.com", url("http://a.example.com/x"), "'http://a.example.com'"),
        ("a.example.com:80", url("http://a.example.com/x"), "'http://a.example.com'"),
        ("http://a.example.com", url("https://a.example.com/x"), "'a.example.com'"),
        ("a.example.com", s3("https://a.example.com:8443"), "'a.example.com:8443'"),
        ("a.example.com", url("https://b.a.example.com/x"), "'b.a.example.com'"),
        ("* .example.com https:// http://[ a:b:c", s3("https://a.example.com"), "'a.example.com'"),
        ("", url("https://[fd00::1]:8443/x"), "'[fd00::1]:8443'"),
    ],
)
@pytest.mark.parametrize("key", ["token", "username", "accessKey", "secretKey"])
def test_others_get_nothing_and_the_message_says_what_to_add(
    hosts: str | None, content: ContentSpec, word: str, key: str
) -> None:
    secrets = {key: "t0ps3cret"} | ({"hosts": hosts} if hosts is not None else {})
    if isinstance(content, UrlSpec) != (key in ("token", "username")):
        check_hosts(content, secrets)  # nothing of it would be sent
        return
    with pytest.raises(InvalidError, match=r"its key 'hosts' does not name") as rejected:
        check_hosts(content, secrets)
    assert word in str(rejected.value)
    assert "t0ps3cret" not in str(rejected.value)


def test_a_secret_without_credentials_is_sent_nowhere() -> None:
    with raises_nothing():
        check_hosts(url("http://a.example.com/x"), {"hosts": "b", "password": "", "token": ""})
