"""kill -9 at every step of a filling, over real pools: a volume is whole or unfinished, never half filled as whole."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.crash.filling.child import driver_of, fill, make
from tests.forked import forked
from tests.unit.storage.content.server import Files, served

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import local_client
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.host import mount
from tonnage.storage.pools.base.record import CONTENT
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.real
BODY = LayerTar().folder("d").add("d/a", os.urandom(3 << 20)).add("d/b", b"end").data()
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files({"/x.tar": BODY})) as found:
        yield found


def mounts_below(folder: Path) -> list[str]:
    return [entry.target for entry in mount.mounts() if entry.target.startswith(str(folder))]


async def check(described: str, folder: Path, port: int, *, finishes: bool = True) -> bool:
    """What the next driver finds; whether the volume was whole. Then it is made whole, unless that is not wanted, and
    deleted."""
    pool, driver = driver_of(described, folder, port)
    await pool.open()
    client = local_client(driver)
    left = await pool.list()
    was_whole = bool(left) and left[0].owner[CONTENT].startswith("filled:")
    if left and not was_whole:
        with pytest.raises(CsiError) as rejected:
            await client.stage("p/v", folder / "staging", VolumeCapability())
        assert rejected.value.code is Code.FAILED_PRECONDITION
    if finishes:
        if not was_whole:
            await make(driver, port, DIGEST)
        await read(client, folder)
    await client.delete_volume("p/v")
    assert await pool.list() == []
    await driver.fillings.close()
    await pool.close()
    return was_whole


async def read(client: CsiClient, folder: Path) -> None:
    """A pod sees all of the content, and nothing else."""
    await client.stage("p/v", folder / "staging", VolumeCapability())
    assert hashlib.sha256(
        (folder / "staging/d/a").read_bytes() + (folder / "staging/d/b").read_bytes()
    ).hexdigest() == (hashlib.sha256(BODY[1024 : 1024 + (3 << 20)] + b"end").hexdigest())
    assert {path.name for path in (folder / "staging").iterdir()} - {"lost+found"} == {"d"}
    await client.unstage("p/v", folder / "staging")


@pytest.mark.parametrize(
    "described",
    ["image:{home},name=p,size=200Mi,sparse=yes,overcommit=yes", "btrfs:{home},name=p,size=300Mi,sparse=yes,overcommit=yes"],
    ids=["image", "btrfs"],
)  # fmt: skip
@pytest.mark.usefixtures("real_folder")
def test_a_kill_at_any_step(described: str, memory_folder: Path, files: Files, tell: Callable[[str], None]) -> None:
    folder = memory_folder
    code, steps = forked(partial(fill, described, folder, files.port, DIGEST, 0))
    assert code == 0
    assert forked(partial(check, described, folder, files.port)) == (0, True)
    outcomes = {True: 0, False: 0}
    for at in range(1, steps + 1):
        code, _ = forked(partial(fill, described, folder, files.port, DIGEST, at))
        if code == 0:
            continue  # the steps of threads come in another order now and then
        assert code == -signal.SIGKILL
        code, was_whole = forked(partial(check, described, folder, files.port, finishes=at % 2 == 0))
        assert code == 0, f"killed at step {at}"
        outcomes[was_whole] += 1
        assert not [path for path in mounts_below(folder) if "filling" in path or "staging" in path]
        assert not [path for path in (folder / "state").rglob("*") if path.name.startswith("v")]
    tell(f"fillings killed over {described.partition(':')[0]}: {sum(outcomes.values())} of {steps} steps,"
         f" {outcomes[True]} were whole")  # fmt: skip
    assert outcomes[False] > outcomes[True]
