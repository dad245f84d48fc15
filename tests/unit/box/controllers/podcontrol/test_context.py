"""Controller context: its loop reconciles an object when it changes."""

from __future__ import annotations

from tests.unit.fixture_types import Running

from tonnage.base.errors import PreconditionError
from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.testing.wait import Eventually


class _Counter(Reconciler[str]):
    """Fails once for each object."""

    def __init__(self, context: ControllerContext) -> None:
        self.seen: list[str] = []
        super().__init__("test")
        self.watch(context.informers.of(CONFIG_MAPS), own_key)

    async def reconcile(self, key: str) -> None:
        self.seen.append(key)
        if self.seen.count(key) == 1:
            raise PreconditionError("not yet")


async def test_each_changed_object_is_reconciled_until_that_succeeds(
    kube: Client, informers: Informers, events: EventRecorder, running: Running, eventually: Eventually
) -> None:
    counter = _Counter(ControllerContext(kube, informers, events))
    async with running(counter):
        for name in ("a", "b"):
            await kube.create(CONFIG_MAPS, {"metadata": {"name": name}}, "default")

        async def twice() -> bool:
            return all(counter.seen.count(f"default/{name}") == 2 for name in ("a", "b"))

        await eventually(twice)


def test_a_deleted_object_has_its_key_too() -> None:
    one = CONFIG_MAPS.decode(b'{"metadata":{"name":"a","namespace":"n"}}')
    assert own_key(None, one) == own_key(one, None) == own_key(one, one) == ("n/a",)
    assert own_key(None, None) == ()
