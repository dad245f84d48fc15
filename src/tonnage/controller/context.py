"""Context of the cluster-wide controllers: what each is given."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from tonnage.aio.clock import Clock, RealClock
from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.matching import requested
from tonnage.api.meta import KubeObject
from tonnage.api.pods import Pod
from tonnage.controller.config import ControllerConfig
from tonnage.errors import Invalid
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers


class LoopKey(NamedTuple):
    """A key of a controller that handles several kinds. what: the kind, as the controller names it."""

    what: str
    key: str


@dataclass(frozen=True)
class LoopContext:
    """Client, shared caches, Events, clock and configuration.

    provisioners: of claims that the controllers handle; empty: all. pod_fields: narrows the watch of pods
    (`status.phase=Pending`). seeing: schedulers that report class errors on pods themselves. choosing: schedulers that
    check sources of clones themselves; None: all do.
    """

    client: Client
    informers: Informers
    events: EventRecorder
    config: ControllerConfig
    clock: Clock = field(default_factory=RealClock)
    provisioners: Collection[str] = ()
    pod_fields: str = ""
    seeing: Collection[str] = ()
    choosing: Collection[str] | None = None

    def handles(self, provisioner: str) -> bool:
        """Return whether claims of a provisioner are handled."""
        return not self.provisioners or provisioner in self.provisioners


def is_unstarted(pod: Pod) -> bool:
    """Return whether a pod waits for its first container."""
    return pod.status.phase in ("", "Pending") and not pod.metadata.deleting


def node_label_of(obj: KubeObject) -> str:
    """Return the node of a volume or capacity object by its label, "" without one."""
    return obj.metadata.labels.get(names.NODE_LABEL, "")


def requested_bytes(claim: PersistentVolumeClaim) -> int:
    """Return the bytes that a claim requests; 0 for an invalid quantity."""
    try:
        return requested(claim)
    except Invalid:
        return 0
