"""What every cluster has, and where the server listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.server.listening import Box

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import BusyError, InvalidError
from tonnage_box.apiserver.server import auth
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


async def test_namespaces_of_every_cluster(api: Api) -> None:
    names = [i["metadata"]["name"] for i in (await api.get("/api/v1/namespaces"))["items"]]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert api.server.cluster_id() == (await api.get("/api/v1/namespaces/kube-system"))["metadata"]["uid"]


async def test_a_taken_port_and_open_doors_are_rejected(box: Box, tmp_path: Path) -> None:
    port = int(box.server.url.rpartition(":")[2])
    other = ApiServer(Store(extractor()), credentials=auth.ensure(tmp_path, RealClock()))
    with pytest.raises(BusyError, match="choose another port"):
        await other.listen(port=port)
    with pytest.raises(InvalidError, match="loopback"):
        await other.listen("0.0.0.0")
    with pytest.raises(InvalidError, match="credentials"):
        await ApiServer(Store(extractor())).listen()
    await other.stop()
