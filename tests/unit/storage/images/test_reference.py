"""Names of images."""

import pytest

from tonnage.base.errors import InvalidError
from tonnage.storage.images.reference import is_digest, parse

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("docker.io/library/busybox:latest", "docker.io/library/busybox:latest"),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
        ("user/app:1", "docker.io/user/app:1"),
        ("localhost/app", "localhost/app:latest"),
        ("registry:5000/a/b:V1", "registry:5000/a/b:V1"),
        ("registry.example/a", "registry.example/a:latest"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        (f"busybox:1@{DIGEST}", f"docker.io/library/busybox:1@{DIGEST}"),
    ],
)
def test_names_are_normalized(text: str, normal: str) -> None:
    assert str(parse(text)) == normal
    assert str(parse(normal)) == normal


@pytest.mark.parametrize(
    "text",
    ["", "A", "a b", "a:", "a:-x", "a@sha256:12", "../a", "a/../b", "a//b", "a\n", "x" * 300, "a:" + "t" * 129, "ü"],
)
def test_what_is_no_name_is_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match="invalid reference format"):
        parse(text)


def test_only_sha256_is_a_digest() -> None:
    assert is_digest(DIGEST)
    assert not is_digest("sha512:" + "a" * 128)
