"""However an API server forgets, no older state of it passes for the present one.

A model of one node: PersistentVolumes come and go, the API server is backed up and restored at any moment, its Node is
made anew, the agent sees the PersistentVolumes late, and is killed between any two of its writes.
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.examples import examples

from tonnage.base.errors import PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import CSIPersistentVolumeSource, Node, PersistentVolume, PersistentVolumeSpec
from tonnage.kubernetes.api.kinds import NODES, VOLUMES, Kind
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.node.history import FILE, ApiHistory, _read
from tonnage.provisioning.claims.node_scope import NodeScope
from tonnage_box.testing.clock import ManualClock

T = TypeVar("T")
NODE = "node-1"


class _Killed(BaseException):
    """The agent's process ends here."""


@dataclass
class _Api:
    """The API server's state, as far as the agent reads it."""

    uid: int = 0
    notes: dict[str, str] = field(default_factory=dict)
    volumes: set[str] = field(default_factory=set)


class _World:
    """The API server as a client, and the moment at which the agent is killed. steps: its writes until then."""

    def __init__(self) -> None:
        self.api = _Api()
        self.steps = 0

    def step(self) -> None:
        """Before and after each write."""
        self.steps -= 1
        if self.steps == 0:
            raise _Killed

    async def get(self, kind: Kind[Any], name: str, namespace: str = "") -> Node:
        assert (kind, name, namespace) == (NODES, NODE, "")
        return Node(metadata=ObjectMeta(name=NODE, uid=str(self.api.uid), annotations=dict(self.api.notes)))

    async def list(self, kind: Kind[Any], labels: str = "") -> Any:
        assert kind is VOLUMES
        assert labels == f"{names.NODE_LABEL}={NODE}"
        return SimpleNamespace(items=[_volume(name) for name in sorted(self.api.volumes)])

    async def patch(self, kind: Kind[Any], name: str, body: dict[str, Any], *, uid: str) -> None:
        assert (kind, name, uid) == (NODES, NODE, str(self.api.uid))
        self.step()
        for key, value in body["metadata"]["annotations"].items():
            if value is None:
                self.api.notes.pop(key, None)
            else:
                self.api.notes[key] = value
        self.step()


class _Agent(ApiHistory):
    """The history of an agent that may be killed around the writes of its file."""

    def __init__(self, world: _World, state: Path, seen: Sequence[str]) -> None:
        self.cache = Cache[PersistentVolume]()
        events = cast("Any", SimpleNamespace(warning=lambda *_: None, normal=lambda *_: None))
        client = cast("Client", world)
        super().__init__(client, events, ManualClock(), NodeScope(NODE, "cluster-1"), self.cache, state)
        self._world = world
        self.see(seen)

    def see(self, volumes: Sequence[str]) -> None:
        """What the watch shows now."""
        self.cache.replace([_volume(name) for name in volumes])

    async def _save(self, seen: Any) -> None:
        self._world.step()
        await super()._save(seen)
        self._world.step()


def _volume(name: str) -> PersistentVolume:
    source = CSIPersistentVolumeSource(
        names.DRIVER, f"scratch/{name}", volume_attributes={names.PARAM_EPHEMERAL: "true"}
    )
    return PersistentVolume(
        metadata=ObjectMeta(name=name), spec=PersistentVolumeSpec(csi=source, persistent_volume_reclaim_policy="Delete")
    )


class Amnesia(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory()
        self._world = _World()
        self._backups: list[_Api] = []
        self._made = self._nodes = 0
        self._agent = self._start()

    def teardown(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._folder.cleanup()

    def _start(self) -> _Agent:
        return _Agent(self._world, Path(self._folder.name), sorted(self._world.api.volumes))

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], default: T, *, kill_at: int = 0) -> T:
        """Run a step of the agent; killed at that write, or stopped, it gives the default."""
        self._world.steps = kill_at
        try:
            return self._loop.run_until_complete(work())
        except _Killed:
            self._agent = self._start()
        except PreconditionError:
            pass
        finally:
            self._world.steps = 0
        return default

    @rule(is_seen=st.booleans())
    def make(self, *, is_seen: bool) -> None:
        self._made += 1
        self._world.api.volumes.add(f"pvc-{self._made}")
        if is_seen:
            self.watch()

    @rule(data=st.data())
    @precondition(lambda self: self._world.api.volumes)
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self._world.api.volumes)))
        self._world.api.volumes.discard(name)

    @rule()
    def back_up(self) -> None:
        self._backups.append(copy.deepcopy(self._world.api))

    @rule(data=st.data())
    @precondition(lambda self: self._backups)
    def restore(self, data: st.DataObject) -> None:
        self._world.api = copy.deepcopy(data.draw(st.sampled_from(self._backups)))

    @rule()
    @precondition(lambda self: self._made % 4 == 3)  # else no other state lives long enough
    def make_node_anew(self) -> None:
        self._nodes += 1  # after a restore too it is another than all before
        self._world.api.uid = self._nodes
        self._world.api.notes = {}

    @rule()
    def a_person_says_so(self) -> None:
        self._world.api.notes.pop(names.DELETIONS_STOPPED, None)

    @rule()
    def watch(self) -> None:
        self._agent.see(sorted(self._world.api.volumes))

    @rule()
    def restart(self) -> None:
        self._agent = self._start()

    @rule(kill_at=st.just(0) | st.integers(1, 12))
    def look(self, kill_at: int) -> None:
        is_older = self._is_older()
        has_passed = self._run(self._look, False, kill_at=kill_at)
        assert not (is_older and has_passed), "an older state passed for the present one"

    async def _look(self) -> bool:
        await self._agent.check()
        await self._agent._renew()
        return True

    def _is_older(self) -> bool:
        """Whether the Node has not the last mark that it had, and is the same object; or is one of before."""
        file, api = Path(self._folder.name) / FILE, self._world.api
        seen = _read(file) if file.exists() else None
        if seen is None:
            return False
        if seen.node != str(api.uid):
            return str(api.uid) in seen.former_nodes
        return seen.confirmed and api.notes.get(names.HISTORY, "") != seen.mark


TestAmnesia = Amnesia.TestCase
TestAmnesia.settings = examples(100, machine=True, stateful_step_count=40, deadline=None)
