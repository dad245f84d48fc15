"""The table of inline sources and the CSIDriver objects that follow from it."""

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.node.inline.config import parse_inline
from tonnage.node.inline.sources import KINDS, csi_drivers, kind_of


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_built_without_a_cluster(kind: str) -> None:
    (body,) = csi_drivers([parse_inline(kind)], RealClock())
    assert body["metadata"]["name"] == f"{kind}.tonnage.dev"
    assert "Ephemeral" in body["spec"]["volumeLifecycleModes"]
    assert body["spec"]["podInfoOnMount"]


def test_an_unknown_kind_or_option_is_rejected_by_name() -> None:
    with pytest.raises(InvalidError, match=r"no such kind; there is .*node-labels"):
        kind_of(parse_inline("labels"))
    with pytest.raises(InvalidError, match="unknown option 'colour'; there is memory, name"):
        kind_of(parse_inline("node-labels,colour=red"))
