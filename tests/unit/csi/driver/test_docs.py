"""The pages of CSI calls and class parameters say what the code does, for each kind of pool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.parameters import MOUNT_OPTIONS
from tonnage.csi.driver.services.controller import ControllerService
from tonnage.csi.driver.services.identity import identity_of
from tonnage.csi.driver.services.node import NodeService
from tonnage.storage.pools.base.parameters import KeyReader, keys_of
from tonnage.storage.pools.btrfs import backend as btrfs
from tonnage.storage.pools.fake import backend as fake
from tonnage.storage.pools.fake.backend import FakePool
from tonnage.storage.pools.image import backend as image
from tonnage.storage.pools.kinds import MODULES
from tonnage.storage.pools.lvm import backend as lvm
from tonnage.storage.pools.pmem import backend as pmem
from tonnage.storage.pools.pmem import volume_group
from tonnage.storage.pools.quota import backend as quota
from tonnage.storage.pools.static import backend as static

POOLS = {kind.FEATURES.kind: kind.FEATURES for kind in (image, btrfs, lvm, quota, pmem, static, fake)}
COLUMNS = POOLS | {"pmem, `mode=lvm`": volume_group.FEATURES}
"""Of the table of parameters: a mode that takes other ones than its kind has its own."""
REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
TEXT = "\n".join((REFERENCE / name).read_text() for name in ("class-parameters.md", "csi-calls.md"))


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    table = re.search(r"^\|.*?(?=\n\n)", TEXT[TEXT.index(f"\n{heading}\n") :], re.DOTALL | re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_each_kind_takes_parameters_of_the_table(kind: str) -> None:
    """The reference has a row for each of the table, and a column for each kind."""
    features = COLUMNS[kind]
    assert features.parameters | features.modifiable | features.rejected.keys() <= keys_of(KeyReader.POOL)


def test_each_parameter_of_the_table_is_taken() -> None:
    taken = {key for pool in COLUMNS.values() for key in pool.parameters | pool.modifiable}
    assert keys_of(KeyReader.POOL) == taken
    assert set(POOLS) == set(MODULES)


def test_every_call_is_told_of_as_it_is(tmp_path: Path) -> None:
    told = {name: row[1] for row in rows("## Calls") for name in row[0].split(", ")}
    driver = Driver("n", {"m": FakePool("m", 1)}, tmp_path)
    offered = {"Identity": identity_of(driver), "Controller": ControllerService(driver), "Node": NodeService(driver)}
    for service, implementation in offered.items():
        for method in csi_pb2.DESCRIPTOR.services_by_name[service].methods:
            assert (told[method.name] == "UNIMPLEMENTED") == (not hasattr(implementation, method.name)), method.name


@pytest.mark.parametrize("service", ["Controller", "Node"])
async def test_every_capability_is_told(tmp_path: Path, service: str) -> None:
    told = {name: row[1] for row in rows("## Calls") for name in row[0].split(", ")}
    driver = Driver("n", {"m": FakePool("m", 1)}, tmp_path)
    if service == "Controller":
        answer = await ControllerService(driver).ControllerGetCapabilities(csi_pb2.ControllerGetCapabilitiesRequest())
        kinds = csi_pb2.ControllerServiceCapability.RPC.Type.Name
        offered = {kinds(item.rpc.type) for item in answer.capabilities}
    else:
        node = await NodeService(driver).NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest())
        offered = {csi_pb2.NodeServiceCapability.RPC.Type.Name(item.rpc.type) for item in node.capabilities}
    assert set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", told[f"{service}GetCapabilities"])) == offered


def test_mount_options_in_the_text_are_allowed() -> None:
    assert {"noatime", "nosuid", "ro"} <= MOUNT_OPTIONS
