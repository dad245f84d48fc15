"""What a class may say of its volumes when their node is gone."""

from __future__ import annotations

import pytest

from tonnage.api import names
from tonnage.api.meta import ObjectMeta
from tonnage.api.storage import StorageClass
from tonnage.claims.create_request import parameters_of, release_after
from tonnage.errors import Invalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("keep", None),
        ("release-after:1m", 60),
        ("release-after:90s", 90),
        ("release-after:1h30m", 5400),
        ("release-after:7d", 7 * 86400),
        ("release-after:1d2h3m4s", 86400 + 7200 + 180 + 4),
    ],
)
def test_what_can_be_said(text: str, seconds: float | None) -> None:
    assert release_after({names.ON_NODE_GONE: text}) == seconds


def test_without_a_word_volumes_are_kept() -> None:
    assert release_after({}) is None


@pytest.mark.parametrize(
    "text",
    ["", "release", "release-after:", "release-after:1", "release-after:5x", "release-after:-1h", "release-after:1m1h",
     "release-after: 1h", "1h", "Keep", "release-after:59s", "release-after:0s", "release-after:9999999d"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"tonnage\.dev/on-node-gone"):
        release_after({names.ON_NODE_GONE: text})


def _class(**parameters: str) -> StorageClass:
    return StorageClass(metadata=ObjectMeta(name="c"), parameters=parameters)


def test_the_driver_never_sees_it_and_a_fault_in_it_is_the_classs() -> None:
    fine = {names.ON_NODE_GONE: "release-after:1h", names.ROLLBACK: "true", "erase": "zero"}
    assert parameters_of(_class(**fine)) == {"erase": "zero"}
    with pytest.raises(Invalid, match="the shortest time is 1m"):
        parameters_of(_class(**{names.ON_NODE_GONE: "release-after:1s"}))
    with pytest.raises(
        Invalid, match=r"unknown parameter 'tonnage\.dev/on-node-lost': of those for the agent there are"
    ):
        parameters_of(_class(**{"tonnage.dev/on-node-lost": "keep"}))
