"""Upstream's snapshot controller against the box's API server: alone, where it judges that, and at once with ours.

The agents are stand-ins.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.integration.third_party.programs import SNAPSHOTS as PROGRAM
from tests.programs import found
from tests.unit.controller.contexts import context
from tests.unit.controller.snapshots.groupworld import GroupWorld
from tests.unit.controller.snapshots.world import World

from tonnage.base.aio.clock import RealClock
from tonnage.controller.snapshots.controller import SnapshotController
from tonnage.kubernetes.api.group_snapshot import group_of, is_member_content, member_names
from tonnage.kubernetes.api.kinds import EVENTS, GROUP_SNAPSHOTS, SNAPSHOTS
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.client.events import EventRecorder
from tonnage_box.apiserver.server.auth import ensure, write_kubeconfig
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing import apiserver

pytestmark = [pytest.mark.real, pytest.mark.programs, pytest.mark.timeout(300)]
SOME = 6


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A cluster in which upstream's controller runs."""
    async with _upstream(tmp_path, groups=False) as found:
        yield found


@pytest.fixture
async def groups(tmp_path: Path) -> AsyncIterator[GroupWorld]:
    """The same, and the controller makes groups too."""
    async with _upstream(tmp_path, groups=True) as found:
        yield found


@asynccontextmanager
async def _upstream(tmp_path: Path, *, groups: bool) -> AsyncIterator[GroupWorld]:
    program = found(PROGRAM)
    credentials = ensure(tmp_path / "credentials", RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials)
    await server.start()
    write_kubeconfig(tmp_path / "kubeconfig", await server.listen(), credentials)
    log = (tmp_path / "log").open("wb")
    options = (f"--kubeconfig={tmp_path}/kubeconfig", f"--feature-gates=CSIVolumeGroupSnapshot={str(groups).lower()}")
    process = await asyncio.create_subprocess_exec(program, *options, "-v=2", stderr=log)
    yield GroupWorld(apiserver.client(server))
    process.terminate()
    await process.wait()
    log.close()
    await server.stop()
    said = (tmp_path / "log").read_text()
    assert not re.findall(r"^E.*(?:Unsupported|not acceptable|cannot be handled|panic).*", said, re.MULTILINE)


async def _until(world: World, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1200):
        await world.act()
        if await holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not so after 120 s: {what}")


async def _ready(world: World, *names: str) -> bool:
    found = [await world.get(name) for name in names]
    return all(one is not None and one.status.ready_to_use for one in found)


async def _gone(world: World) -> bool:
    return not (await world.kube.list(SNAPSHOTS)).items and not await world.contents()


async def test_alone_it_finds_all_that_it_needs(world: World) -> None:
    await world.classed(default=True)
    await world.bound()
    await world.snapshot()
    await _until(world, "ready", partial(_ready, world, "monday"))
    made = await world.get()
    assert made is not None
    assert (made.spec.volume_snapshot_class_name, made.status.restore_size) == ("tonnage", "1Gi")
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await _until(world, "gone", partial(_gone, world))
    assert world.storage == {}
    await world.existing()
    await world.snapshot(source={"volumeSnapshotContentName": "old"})
    await _until(world, "bound", partial(_ready, world, "monday"))
    await world.kube.delete(SNAPSHOTS, "monday", "default")
    await _until(world, "gone again", partial(_gone, world))
    reasons = {event.reason for event in (await world.kube.list(EVENTS)).items}
    assert {"CreatingSnapshot", "SnapshotCreated", "SnapshotReady"} <= reasons


@asynccontextmanager
async def _ours(world: World) -> AsyncIterator[None]:
    async with apiserver.informers(world.kube) as informers:
        loop = SnapshotController(context(world.kube, informers, EventRecorder(world.kube, "ours")))
        task = asyncio.ensure_future(loop.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_with_ours_at_once_no_harm_is_done(world: World) -> None:
    names = [f"s{number}" for number in range(SOME)]
    async with _ours(world):
        await world.classed(default=True)
        await world.bound()
        for name in names:
            await world.snapshot(name)
        await _until(world, "ready", partial(_ready, world, *names))
        assert (len(await world.contents()), len(world.storage)) == (SOME, SOME)
        for name in names:
            await world.kube.delete(SNAPSHOTS, name, "default")
        await _until(world, "gone", partial(_gone, world))
        assert world.storage == {}


async def test_a_group_of_upstream_s_controller_is_like_ours(groups: GroupWorld) -> None:
    """The names, sources and labels that our agents and readers rely on."""
    await groups.group_classed(default=True)
    await groups.db()
    made = await groups.group(of_class="")

    async def ready() -> bool:
        found, members = await groups.get_group(), await groups.members()
        is_ready = found is not None and found.status.ready_to_use
        return bool(is_ready and len(members) == 2 and all(one.status.ready_to_use for one in members))

    await _until(groups, "ready", ready)
    for claim in ("data", "log"):
        name, content_name = member_names(made.metadata.uid, f"pool/v-{claim}")
        member, content = await groups.get(name), await groups.content(content_name)
        assert member is not None
        assert content is not None
        assert group_of(member) is not None
        assert is_member_content(content)
        assert content.status.snapshot_handle == f"pool/v-{claim}-{made.metadata.uid}"
        assert member.spec.source.persistent_volume_claim_name == claim
    (whole,) = await groups.group_contents()
    assert MANAGED_BY not in whole.metadata.labels
    await groups.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")

    async def gone() -> bool:
        return await groups.get_group() is None and await _gone(groups) and not await groups.group_contents()

    await _until(groups, "gone", gone)
    assert groups.storage == {}
