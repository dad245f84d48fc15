"""Where the pools and volumes are read: a data folder, a socket, a configuration, pools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, NotFoundError, UnavailableError
from tonnage.tools.ops.inventory import Direct
from tonnage.tools.ops.sources import Wanted, opened
from tonnage_box.data_dir import DataFolder, Settings

POOL = "fake,name=a,size=1Gi"


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (Wanted(data=Path("/x"), pools=[POOL]), InvalidError, "choose one"),
        (Wanted(data=Path("/nowhere/x")), NotFoundError, "name a box's folder with --data"),
        (Wanted(endpoint="/nowhere/csi.sock"), UnavailableError, r"no driver answers at /nowhere/csi\.sock"),
        (Wanted(endpoint="x"), InvalidError, "want a unix socket"),
    ],
)
async def test_what_cannot_be_read(wanted: Wanted, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        async with opened(wanted):
            pass


async def test_pools_that_nobody_serves_are_read_directly(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("nodeName: n1\npools: [{kind: fake, name: b, size: 1Gi}]\n")
    async with opened(Wanted(config=file, pools=[POOL])) as found:
        assert [type(source) for source in found.nodes] == [Direct]
        assert [(report.pool, report.node) for report in await found.pools()] == [("a", "n1"), ("b", "n1")]
        assert (await found.contents()).volumes == []
        async with found.client() as client:
            assert client is None


async def test_a_stopped_box_is_locked_while_it_is_read(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    data.open(Settings())
    data.keep(Settings(), "uid-1")
    data.close()
    async with opened(Wanted(data=data.path)) as found:
        assert len(found.nodes) == 1
        assert "its cluster does not run" in found.why_none
        assert DataFolder(data.path).running() is not None
    assert DataFolder(data.path).running() is None
