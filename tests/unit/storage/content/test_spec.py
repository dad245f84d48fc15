"""What a volume may be filled with: one form each, all others rejected by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage.storage.content import spec
from tonnage.storage.content.spec import FolderSpec, ImageSpec, S3Spec, UrlSpec

HEX = "ab" * 32
URL = {"url": "https://h/x.tar.gz", "sha256": HEX}


@pytest.mark.parametrize(
    ("given_spec", "content", "text"),
    [
        ({"image": {"reference": "busybox:1"}}, ImageSpec("busybox:1"), "image busybox:1"),
        ({"folder": {"name": "models"}}, FolderSpec("models"), "folder models"),
        ({"url": URL | {"unpack": "tar.gz"}}, UrlSpec("https://h/x.tar.gz", HEX, "tar.gz"), "https://h/x.tar.gz"),
        ({"url": {"url": "http://h:1/x?key=secret", "sha256": HEX}}, UrlSpec("http://h:1/x?key=secret", HEX), "http://h:1/x"),
        ({"s3": {"endpoint": "https://s", "bucket": "buk", "key": "a/b"}}, S3Spec("https://s", "buk", "a/b"), "s3://buk/a/b"),
        ({"s3": {"endpoint": "https://s", "bucket": "buk", "prefix": "a/", "region": "eu-1"}}, S3Spec("https://s", "buk", prefix="a/", region="eu-1"), "s3://buk/a/"),
    ],
)  # fmt: skip
def test_each_form_is_read_shown_and_passed_on(
    given_spec: dict[str, Any], content: spec.ContentSpec, text: str
) -> None:
    found = spec.parse(given_spec, "Content ns/a")
    assert (found, str(found)) == (content, text)
    assert spec.decode(spec.encode(found)) == found


@pytest.mark.parametrize(
    ("given_spec", "words"),
    [
        ({}, ["Content ns/a: spec", spec.ONE_OF]),
        ({"image": {"reference": "a"}, "folder": {"name": "b"}}, [spec.ONE_OF]),
        ({"git": {}}, ["spec.git", "unknown field", "image, url, s3, folder"]),
        ({"image": {}}, ["spec.image.reference: it is missing"]),
        ({"image": {"reference": "UPPER CASE"}}, ["spec.image.reference", "invalid reference format"]),
        ({"image": "busybox"}, ["spec.image", "want an object"]),
        ({"url": {"url": "https://h/x"}}, ["spec.url.sha256: it is missing"]),
        ({"url": URL | {"sha256": "AB" * 32}}, ["spec.url.sha256", "lower case"]),
        ({"url": URL | {"unpack": "zip"}}, ["spec.url.unpack", "none, tar, tar.gz, tar.zst"]),
        ({"url": URL | {"url": "ftp://h/x"}}, ["spec.url.url", "want http://"]),
        ({"url": URL | {"url": "file:///etc/shadow"}}, ["spec.url.url", "want http://"]),
        ({"url": URL | {"url": "https://u:p@h/x"}}, ["spec.url.url", "names a user", "provisioner-secret-name"]),
        ({"url": URL | {"url": "https://h:99999/x"}}, ["spec.url.url", "port"]),
        ({"url": URL | {"url": "https://h/a b"}}, ["spec.url.url", "without spaces"]),
        ({"url": URL | {"url": "https://h/a\nHost: x"}}, ["spec.url.url", "printable"]),
        ({"url": URL | {"secretRef": {"name": "s"}}}, ["spec.url.secretRef", "provisioner-secret-name"]),
        ({"s3": {"endpoint": "https://s", "bucket": "buk"}}, ["exactly one of key and prefix"]),
        ({"s3": {"endpoint": "https://s", "bucket": "buk", "key": "a", "prefix": "b"}}, ["exactly one of key and prefix"]),
        ({"s3": {"endpoint": "https://s", "bucket": "buk", "prefix": "b", "sha256": HEX}}, ["spec.s3.sha256", "one object"]),
        ({"s3": {"endpoint": "https://s/path", "bucket": "buk", "key": "a"}}, ["spec.s3.endpoint", "no path"]),
        ({"s3": {"endpoint": "https://s", "bucket": "../x", "key": "a"}}, ["spec.s3.bucket", "3 to 63"]),
        ({"folder": {"name": "../etc"}}, ["spec.folder.name", "last part"]),
        ({"folder": {"name": 7}}, ["spec.folder.name", "characters"]),
    ],
)  # fmt: skip
def test_what_is_not_known_is_rejected_by_name(given_spec: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidError) as rejected:
        spec.parse(given_spec, "Content ns/a")
    for word in words:
        assert word in str(rejected.value)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("dir:///data/models", None),
        ("folder:models", FolderSpec("models")),
        ("image:registry.example.com:5000/a/b:1", ImageSpec("registry.example.com:5000/a/b:1")),
        (f"https://h/x.tar#sha256={HEX}&unpack=tar", UrlSpec("https://h/x.tar", HEX, "tar")),
        ("s3://buk/a/b#endpoint=https://s:9000&region=eu-1", S3Spec("https://s:9000", "buk", "a/b", region="eu-1")),
        ("s3://buk/a/#endpoint=https://s", S3Spec("https://s", "buk", prefix="a/")),
    ],
)
def test_a_class_says_the_same_in_one_text(text: str, content: spec.ContentSpec | None) -> None:
    assert spec.of_source(text) == content


@pytest.mark.parametrize(
    "text",
    ["models", "/data", "git://x", "https://h/x", f"https://h/x#sha256={HEX}&user=a", "s3://buk/a", "folder:a/b"],
)
def test_other_texts_of_a_class_are_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match="parameter source"):
        spec.of_source(text)


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["image", "url", "s3", "folder", "name", "reference", "key", "prefix", "sha256", "endpoint", "bucket", "x"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["image", "url", "s3", "folder", "secretRef"]), _JSON, max_size=3))
def test_nonsense_is_rejected_and_nothing_else(given_spec: dict[str, Any]) -> None:
    try:
        found = spec.parse(given_spec, "x")
    except InvalidError:
        return
    assert spec.decode(spec.encode(found)) == found
