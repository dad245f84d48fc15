"""Parts of the agent that the provisioner's functions share.

Made once by the agent; the objects have state, the fields never change.
"""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.base.aio.clock import Clock
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.node.capacity.poller import Readings
from tonnage.node.deletions import Deletions
from tonnage.node.provisioner.state import ClaimTable
from tonnage.provisioning.capacity.ledger import Ledger
from tonnage.provisioning.claims.attributes import AttributesClasses
from tonnage.provisioning.claims.node_scope import DriverSet, NodeScope


@dataclass(frozen=True)
class NodeContext:
    """One node's clients, caches and models.

    claims, volumes: those of this node. binds: complete the binding here, else the PV controller does. guard_after:
    reschedules of a pod after which the starvation guard may reserve capacity for it, 0 for never.
    """

    client: Client
    events: EventRecorder
    clock: Clock
    scope: NodeScope
    drivers: DriverSet
    ledger: Ledger
    readings: Readings
    claims: Cache[PersistentVolumeClaim]
    volumes: Cache[PersistentVolume]
    classes: Cache[StorageClass]
    attributes: AttributesClasses
    table: ClaimTable
    deletions: Deletions
    binds: bool = True
    guard_after: int = 0
