"""The pages of CSI calls and class parameters say what the code does, for each kind of pool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.parameters import MOUNT_OPTIONS
from tonnage.csi.driver.services.controller import ControllerService
from tonnage.csi.driver.services.identity import Identity
from tonnage.csi.driver.services.node import NodeService
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


def test_every_kind_and_parameter_is_in_the_table() -> None:
    head, _, *body = rows("## Which kind takes what")
    kinds = head[1:]
    assert set(kinds) == set(COLUMNS)
    assert set(POOLS) == set(MODULES)
    told = {row[0].strip("`"): dict(zip(kinds, row[1:], strict=True)) for row in body}
    parameters = {key for pool in COLUMNS.values() for key in pool.parameters | pool.modifiable}
    for key in sorted(parameters):
        for kind, pool in COLUMNS.items():
            want = "later" if key in pool.modifiable else "yes" if key in pool.parameters else ""
            assert told[key][kind] == want, f"{key} of {kind}"
    flags = {
        "snapshots": "snapshots", "clones": "clones", "larger volumes": "expansion", "raw block": "blocks",
    }  # fmt: skip
    for row, flag in flags.items():
        for kind, pool in COLUMNS.items():
            assert told[row][kind] == ("yes" if getattr(pool, flag) else ""), f"{row} of {kind}"
    for kind, pool in COLUMNS.items():
        assert told["file systems"][kind] == ", ".join(pool.fstypes), kind
    assert set(told) == parameters | set(flags) | {"file systems"}


def test_every_parameter_is_explained() -> None:
    explained = {key for row in rows("## Parameters") for key in re.findall(r"`([^`]+)`", row[0])}
    for pool in COLUMNS.values():
        assert pool.parameters <= explained
    kinds = next(row[1] for row in rows("## Parameters") if row[0] == "`kind`")
    assert set(re.findall(r"`(\w+)`", kinds)) == set(MODULES)


def test_every_call_is_told_of_as_it_is(tmp_path: Path) -> None:
    told = {name: row[1] for row in rows("## Calls") for name in row[0].split(", ")}
    driver = Driver("n", {"m": FakePool("m", 1)}, tmp_path)
    offered = {"Identity": Identity(driver), "Controller": ControllerService(driver), "Node": NodeService(driver)}
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
