"""`--inline KIND[,key=value...]`."""

import pytest

from tonnage.base.errors import InvalidError
from tonnage.node.inline.config import InlineConfig, parse_inline, parse_inlines


def test_the_kind_gives_the_name_and_options_are_the_kinds() -> None:
    assert parse_inline("node-labels") == InlineConfig("node-labels", "node-labels.tonnage.dev")
    found = parse_inline("image,name=image.csi.k8s.io,memory=8Mi,writable=1Gi")
    assert found == InlineConfig("image", "image.csi.k8s.io", 8 << 20, {"writable": "1Gi"})


@pytest.mark.parametrize("text", ["", "a,b", "a,=b", "a,b=1,b=2", "a,memory=1", "a,memory=x", "a,name=-"])
def test_a_bad_one_is_rejected(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_inline(text)


def test_two_of_one_name_are_rejected() -> None:
    with pytest.raises(InvalidError, match=r"two drivers are named a\.tonnage\.dev"):
        parse_inlines(["a", "a,memory=2Mi"])
