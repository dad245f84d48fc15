"""What is known of a driver: which pool a class draws on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.claims.node_scope import DriverInfo


@pytest.mark.parametrize("told", ["fake", "memory"])
@pytest.mark.parametrize("asked", ["fake", "memory"])
def test_a_class_with_the_old_name_of_a_kind_finds_its_pool_and_the_other_way_round(
    tmp_path: Path, told: str, asked: str
) -> None:
    driver = DriverInfo(
        CsiClient(tmp_path / "s"), "d", "a", frozenset(), frozenset(), {}, "i", pools={"a": "image", "b": told}
    )
    assert driver.pool(StorageClass(metadata=ObjectMeta(name="c"), parameters={"kind": asked})) == "b"
    assert driver.pool(StorageClass(metadata=ObjectMeta(name="c"), parameters={"kind": "image"})) == "a"
