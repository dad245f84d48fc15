"""The example source: a file for each label of the node."""

from pathlib import Path

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.base import FillRequest, InlinePod
from tonnage.csi.inline.node_labels import NodeLabelSource
from tonnage.kubernetes.api.kinds import NODES
from tonnage_box.testing.apiserver import api_server, client


def asks(**attributes: str) -> FillRequest:
    return FillRequest(InlinePod("default", "web", "uid"), attributes, True, "csi-1", Path("/nonexistent"))


async def test_each_label_with_the_prefix_is_a_file() -> None:
    async with api_server() as server:
        api = client(server)
        labels = {"disk": "fast", "example.com/zone": "a", "example.com/rack": "7"}
        await api.create(NODES, {"metadata": {"name": "n", "labels": labels}})
        source = NodeLabelSource("n", api, RealClock())
        found = await source.fill(asks())
        assert {name: one.data for name, one in found.content.items()} == {
            "disk": b"fast",
            "example.com_zone": b"a",
            "example.com_rack": b"7",
        }
        assert found.again is not None
        assert list((await source.fill(asks(prefix="example.com/z"))).content) == ["example.com_zone"]


async def test_without_an_api_server_it_is_repeated() -> None:
    with pytest.raises(UnavailableError, match="node n"):
        await NodeLabelSource("n", None, RealClock()).fill(asks())
