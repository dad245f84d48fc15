"""Controller context: what each workload controller is given, as in kube-controller-manager."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers


@dataclass(frozen=True)
class ControllerContext:
    """Client, shared caches, Events and clock of one controller."""

    client: Client
    informers: Informers
    events: EventRecorder
    clock: Clock = field(default_factory=RealClock)


def own_key(old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
    """The key of the object that changed."""
    changed = new or old
    return () if changed is None else (changed.key,)
