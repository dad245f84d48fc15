"""Undelete by kubectl, on a box with LVM pools. Run by test_uml.py inside user-mode Linux, with a group on each disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.clusters import OF_A_BOX, Cluster, tonnage
from tests.programs import absent
from tests.vm.undelete import Undelete

POOLS = {"thick": "lvm:vg0,name=thick,size=800Mi", "thin": "lvm:vg1,name=thin,thin=pool,thinsize=800Mi"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A box of one node with all pools. Its folder is in the guest's memory, not the machine's."""
    assert absent(*OF_A_BOX) == ""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    base = tmp_path_factory.mktemp("b")
    (base / "home").mkdir()
    pools = [word for text in POOLS.values() for word in ("--pool", text)]
    cluster = Cluster(base / "data", ("--nodes", "1", *pools), base / "home")
    cluster.up()
    yield cluster
    cluster.down("--purge")


@pytest.mark.parametrize("pool", POOLS)
def test_claims_return_and_make_way_the_oldest_first(box: Cluster, pool: str) -> None:
    def volumes(*words: str) -> subprocess.CompletedProcess[str]:
        return tonnage("volumes", *words, "--data", str(box.data))

    box.kubectl("create", "namespace", pool)
    Undelete(box.kubectl, box.until, volumes, pool=pool, namespace=pool).claims_return_and_make_way_the_oldest_first()
