"""Pull secrets: the entry of the image's registry only, and no secret in a message."""

import base64
import json
from typing import Any

import pytest

from tonnage.base.errors import InvalidError
from tonnage.storage.images import reference
from tonnage.storage.registry import login
from tonnage.storage.registry.login import RegistryLogin


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def find(auths: dict[str, Any], image: str) -> RegistryLogin | None:
    return login.find({login.CONFIG_JSON: json.dumps({"auths": auths})}, reference.parse(image))


@pytest.mark.parametrize(
    ("key", "image", "is_found"),
    [
        ("registry.example:5000", "registry.example:5000/app", True),
        ("https://registry.example:5000/v2/", "registry.example:5000/app", True),
        ("registry.example", "registry.example:5000/app", False),
        ("registry.example.evil", "registry.example/app", False),
        ("https://index.docker.io/v1/", "busybox", True),
        ("docker.io", "busybox", True),
        ("registry.example/team", "registry.example/team/app", True),
        ("registry.example/team", "registry.example/teams/app", False),
    ],
)
def test_only_the_entry_of_the_registry_is_used(key: str, image: str, is_found: bool) -> None:
    assert (find({key: auth("user:word:with:colons")}, image) is not None) == is_found


def test_the_longest_path_counts() -> None:
    entries = {"h.example": auth("all:1"), "h.example/team": auth("team:2"), "h.example/team/app": auth("app:3")}
    found = find(entries, "h.example/team/other")
    assert found == RegistryLogin("team", "2")
    assert found.header == f"Basic {base64.b64encode(b'team:2').decode()}"


def test_other_forms() -> None:
    entry = {"h.example": {"username": "u", "password": "p"}}
    assert login.find({login.CONFIG: json.dumps(entry)}, reference.parse("h.example/a")) == RegistryLogin("u", "p")
    assert login.find({}, reference.parse("h.example/a")) is None


@pytest.mark.parametrize(
    ("secrets", "why"),
    [
        ({login.CONFIG_JSON: "s3cret"}, "cannot be read"),
        ({login.CONFIG_JSON: '{"auths": {"h.example": {"auth": "s3cret!"}}}'}, "not base64"),
        ({login.CONFIG_JSON: '{"auths": {"h.example": {"identitytoken": "s3cret"}}}'}, "identitytoken, which is not"),
        ({login.CONFIG_JSON: '{"auths": {"h.example": {"username": "u", "password": "s3cret\\n"}}}'}, "control"),
        ({login.CONFIG_JSON: '{"auths": {"h.example": {"password": "s3cret"}}}'}, "has no user"),
        ({login.CONFIG: '["s3cret"]'}, "cannot be read"),
        ({"password": "s3cret"}, "neither .dockerconfigjson nor .dockercfg"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_without_its_value(secrets: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidError, match=why) as rejection:
        login.find(secrets, reference.parse("h.example/a"))
    assert "s3cret" not in str(rejection.value)


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(RegistryLogin("u", "s3cret"))
