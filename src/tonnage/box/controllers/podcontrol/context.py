"""Controller context: what each workload controller is given, as in kube-controller-manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock, RealClock
from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject
from tonnage.kube.client import Client
from tonnage.kube.controller import Controller
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers


@dataclass(frozen=True)
class ControllerContext:
    """Client, shared caches, Events and clock of one controller."""

    client: Client
    informers: Informers
    events: EventRecorder
    clock: Clock = field(default_factory=RealClock)

    def controller(
        self,
        name: str,
        kind: Kind[Any],
        reconcile: Callable[[str], Awaitable[float | None]],
        *,
        initial: float = 0.005,
        maximum: float = 120.0,
    ) -> Controller[str]:
        """The loop that reconciles each object of a kind when it changes. initial, maximum: back-off, seconds."""
        controller = Controller(name, reconcile, backoff=Backoff(initial=initial, maximum=maximum))
        controller.watch(self.informers.of(kind), own_key)
        return controller


def own_key(old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
    """The key of the object that changed."""
    changed = new or old
    return () if changed is None else (changed.key,)
