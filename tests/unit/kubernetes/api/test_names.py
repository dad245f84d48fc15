"""Names that must fit where they go."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api import names


def test_node_label_of_a_long_name_is_a_hash_that_fits() -> None:
    long = "node." + "x" * 240

    assert names.label_value("node-1") == "node-1"
    assert len(names.label_value(long)) <= names.MAX_LABEL_VALUE
    assert names.label_value(long) != names.label_value(long + "y")


def test_dns_names() -> None:
    assert names.is_dns_label("a-1")
    assert not names.is_dns_label("a.b")
    assert not names.is_dns_label("x" * 64)
    assert not names.is_dns_label("-a")
    assert names.is_dns_subdomain("a.b-c")
    assert not names.is_dns_subdomain("a..b")
    assert not names.is_dns_subdomain("A")
    assert not names.is_dns_subdomain("a." * 126 + "abc")


def test_inline_handle_is_the_kubelets() -> None:
    assert names.inline_handle("uid", "vol").startswith("csi-")
    assert len(names.inline_handle("uid", "vol")) == 68


@pytest.mark.parametrize(("key", "old"), names.FORMER_KEYS.items())
def test_an_annotation_is_read_under_its_former_key(key: str, old: str) -> None:
    assert names.annotation({}, key) == ""
    assert names.annotation({old: "was"}, key) == "was"
    assert names.annotation({old: "was", key: "is"}, key) == "is"
    assert names.former({key: "is"}, key) == {}
    assert names.former({old: "was"}, key) == {old: None}
