"""Parts of the agent that the provisioner's functions share.

Made once by the agent; the objects have state, the fields never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.aio.clock import Clock
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.meta import ObjectReference
from tonnage.api.storage import StorageClass
from tonnage.capacity.ledger import Ledger, Shortfall
from tonnage.claims.bind import withdrawals
from tonnage.claims.node_scope import CapacitySource, DriverSet, NodeScope
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.node.capacity.poller import Readings
from tonnage.node.provisioner.state import ClaimGroup, ClaimTable, Member


@dataclass(frozen=True)
class PodClaimGroup:
    """Claims (by key) of one pod, the given one included.

    pod: None where it is not known. present: claims with this node. missing: claims that must still get this node
    before the pod can start. coming: what the missing ones request, as far as it is known.
    """

    id: str
    namespace: str
    pod: ObjectReference | None
    claims: tuple[str, ...]
    present: frozenset[str]
    missing: tuple[str, ...] = ()
    copies: tuple[PersistentVolumeClaim, ...] = ()
    """Claims without this node that clone another claim."""
    coming: tuple[tuple[CapacitySource, int], ...] = ()


@dataclass
class GroupRound:
    """A group while it is decided.

    missing: keys of claims that the pod still needs here. is_confirmed: they were read from the API server, and
    reschedules is the max of theirs. pending: claims that may be rescheduled, by uid. uids: of all claims here.
    is_refused: the group cannot be served here, whatever the ledger says.
    """

    found: PodClaimGroup
    group: ClaimGroup
    missing: tuple[str, ...]
    is_confirmed: bool = False
    reschedules: int = 0
    now: float = 0.0
    pending: Mapping[str, PersistentVolumeClaim] = field(default_factory=dict)
    members: Sequence[Member] = ()
    uids: Sequence[str] = ()
    is_refused: bool = False
    shortfall: Shortfall | None = None

    @property
    def fits(self) -> bool:
        """Whether all claims would have capacity, also the missing ones."""
        return self.shortfall is None and not self.is_refused

    @property
    def number(self) -> int:
        """Number of reschedules that the claims have after it."""
        return 1 + max(map(withdrawals, self.pending.values()), default=0)


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
    table: ClaimTable
    binds: bool = True
    guard_after: int = 0
