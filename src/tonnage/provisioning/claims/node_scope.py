"""A node and its CSI drivers, as claims and reservations refer to them.

Plain data, but for attach(): each driver is asked once, through its socket only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tonnage.base.errors import PreconditionError, UnavailableError, UnsupportedError
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import NodeSelector, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.meta import ObjectMeta, OwnerReference
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.selectors import node_matcher
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.storage.pools import kinds
from tonnage.storage.pools.base.parameters import KIND, POOL


@dataclass(frozen=True)
class CapacitySource:
    """A class of a driver, for GetCapacity.

    pool_key: identifies the bytes that sources share.
    """

    driver: str
    storage_class: str
    pool_key: str


@dataclass(frozen=True)
class NodeScope:
    """Node of an agent.

    cluster_uid: uid of the namespace kube-system. former: uids that it had before the cluster's database was lost.
    label: value of `tonnage.dev/node`.
    """

    node: str
    cluster_uid: str
    former: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """Label value of claims, PVs and capacity objects of this node."""
        return names.label_value(self.node)

    @property
    def selector(self) -> str:
        """Label selector for the objects of this node."""
        return f"{names.NODE_LABEL}={self.label}"

    def has_claim(self, claim: ObjectMeta) -> bool:
        """Return whether a claim's selected-node is this node; it may lack our label."""
        return claim.annotations.get(names.SELECTED_NODE) == self.node

    def has_volume(self, volume: ObjectMeta) -> bool:
        """Return whether a PV has this node's label, which its agent sets."""
        return volume.labels.get(names.NODE_LABEL) == self.label


@dataclass(frozen=True)
class DriverInfo:
    """A driver and what it reported.

    default_pool: "" for drivers without named pools. pools: name -> kind, in the driver's order; empty if not reported.
    inline: pools with inline capacity. flex: provisioner -> FlexVolume driver, of classes whose PersistentVolumes are
    FlexVolumes over its volumes.
    """

    client: CsiClient
    name: str
    default_pool: str
    plugin: frozenset[str]
    controller: frozenset[str]
    segment: Mapping[str, str]
    identity: str
    pools: Mapping[str, str] = field(default_factory=dict)
    inline: frozenset[str] = frozenset()
    flex: Mapping[str, str] = field(default_factory=dict)

    def serves(self, storage_class: StorageClass) -> bool:
        """Return whether it makes the volumes of a class."""
        return storage_class.provisioner == self.name or storage_class.provisioner in self.flex

    @property
    def topology(self) -> bool:
        """Whether its volumes have a topology."""
        return types.VOLUME_ACCESSIBILITY_CONSTRAINTS in self.plugin

    @property
    def lists_capacity(self) -> bool:
        """Whether it has GetCapacity."""
        return types.GET_CAPACITY in self.controller

    @property
    def lists_volumes(self) -> bool:
        """Whether it has ListVolumes."""
        return types.LIST_VOLUMES in self.controller

    def reaches(self, volume: PersistentVolume) -> bool:
        """Return whether a PV may be of a volume on this node, by the affinity of the PV."""
        return reaches(volume, self.segment)

    def pool(self, storage_class: StorageClass) -> str:
        """Return the pool of a class, "" for drivers without named pools."""
        if not self.default_pool or (named := storage_class.parameters.get(POOL, "")):
            return named if self.default_pool else ""
        kind = _present(storage_class.parameters.get(KIND, ""))
        if not kind or _present(self.pools.get(self.default_pool, "")) == kind:
            return self.default_pool
        return next((name for name, its in self.pools.items() if _present(its) == kind), self.default_pool)

    def publishes_ahead(self, storage_class: StorageClass) -> bool:
        """Return whether volumes of the class are pre-provisioned.

        No volume is then created for a claim.
        """
        return publishes_ahead(self.pools.get(self.pool(storage_class), ""))

    def source(self, storage_class: StorageClass) -> CapacitySource:
        """Return the ledger's source of a class.

        A driver without named pools is one pool: a reservation that counts against the wrong class costs a short wait;
        one that counts nowhere costs a failed volume.
        """
        pool = self.pool(storage_class)
        return CapacitySource(self.name, storage_class.metadata.name, f"pool/{pool}" if pool else f"driver/{self.name}")


def publishes_ahead(kind: str) -> bool:
    """Return whether volumes of a kind of pool are pre-provisioned. "" and the kinds of others: no."""
    found = kinds.find(kind)
    return found is not None and found.is_prepared


def _present(kind: str) -> str:
    """Return the current name of a kind of pool.

    Classes and older drivers may have the old one.
    """
    return kinds.RENAMED.get(kind, kind)


def reaches(volume: PersistentVolume, segment: Mapping[str, str]) -> bool:
    """Return whether a PV may be of a volume in that segment.

    segment: a driver's topology. A volume's name comes from its claim, so several nodes may have volumes of the same
    name and handle: where the claim got its volume, and where one was created too late. An affinity with other keys
    than the driver's counts as reaching: callers delete what is not reached.
    """
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    spoken = [[e for e in t.match_expressions if e.key in segment] for t in affinity.required.node_selector_terms]
    if not spoken or not all(spoken):
        return True
    return node_matcher(NodeSelector([NodeSelectorTerm(expressions) for expressions in spoken]))(segment, "")


def provisioner_of(claim: PersistentVolumeClaim) -> str:
    """Return the driver that shall provision the claim, "" while that is not set."""
    notes = claim.metadata.annotations
    return notes.get(names.STORAGE_PROVISIONER) or notes.get(names.BETA_STORAGE_PROVISIONER, "")


def pod_owner(claim: PersistentVolumeClaim) -> OwnerReference | None:
    """Return the pod that an ephemeral claim belongs to, or None."""
    owners = claim.metadata.owner_references
    return next((o for o in owners if o.controller and o.kind == "Pod" and o.api_version == "v1"), None)


def is_ephemeral(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim is ephemeral and is deleted with its pod."""
    return pod_owner(claim) is not None


def check_owner(claim: PersistentVolumeClaim, pod: Pod) -> None:
    """Raise PreconditionError unless the pod is the claim's controller owner, by uid."""
    same_namespace = claim.metadata.namespace == pod.metadata.namespace
    if not same_namespace or claim.metadata.controller_uid() != pod.metadata.uid:
        raise PreconditionError(f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)")


def claim_uid(volume: types.CreatedVolume) -> str:
    """Return the uid of the claim that the volume was created for, "" for a volume without a claim."""
    name = volume.context.get(names.CSI_PV_NAME, "")
    prefix = names.volume_name("")
    return name[len(prefix) :] if name.startswith(prefix) else ""


async def attach(client: CsiClient, *, node: str, started_ms: int, number: int) -> DriverInfo:
    """Read a driver's name, capabilities, topology and pools. Idempotent.

    started_ms and number (0..9999) form the provisioner's identity, as external-provisioner writes it into PVs.

    Raises: CsiError; UnavailableError while it is not ready; UnsupportedError.
    """
    if not await client.probe():
        raise UnavailableError(f"driver at {client.socket} is not ready")
    info = await client.plugin_info()
    plugin = await client.plugin_capabilities()
    controller = await client.controller_capabilities() if types.CONTROLLER_SERVICE in plugin else frozenset[str]()
    if types.CREATE_DELETE_VOLUME not in controller:
        raise UnsupportedError(
            f"driver {info.name} makes no volumes: it needs CONTROLLER_SERVICE and CREATE_DELETE_VOLUME"
        )
    segment = (await client.node_info()).topology if types.VOLUME_ACCESSIBILITY_CONSTRAINTS in plugin else {}
    return DriverInfo(
        client,
        info.name,
        info.manifest.get(names.MANIFEST_DEFAULT_POOL, ""),
        frozenset(plugin),
        frozenset(controller),
        dict(segment),
        f"{started_ms}-{number}-{info.name}-{node}",
        dict(pair.split("=", 1) for pair in info.manifest.get(names.MANIFEST_POOLS, "").split(",") if "=" in pair),
        frozenset(filter(None, info.manifest.get(names.MANIFEST_INLINE, "").split(","))),
    )


class DriverSet:
    """Drivers attached so far.

    Listeners are called for each driver, also for earlier ones.
    """

    def __init__(self) -> None:
        self.complete = False
        """Whether all drivers of this node's configuration are attached."""
        self._drivers: dict[str, DriverInfo] = {}
        self._listeners: list[Callable[[DriverInfo], None]] = []

    def __iter__(self) -> Iterator[DriverInfo]:
        return iter(list(self._drivers.values()))

    def get(self, name: str) -> DriverInfo | None:
        """Return the driver of that name, or the one that serves a provisioner of that name; or None."""
        found = self._drivers.get(name)
        return found or next((driver for driver in self._drivers.values() if name in driver.flex), None)

    def sharing_pools_with(self, name: str) -> list[str]:
        """Return other drivers with named pools.

        They are other names of the same program, over the same pools.
        """
        driver = self.get(name)
        if driver is None or not driver.default_pool:
            return []
        return [other.name for other in self._drivers.values() if other.default_pool and other.name != name]

    def add(self, driver: DriverInfo) -> None:
        """Add a driver; it replaces one of the same name."""
        self._drivers[driver.name] = driver
        for listener in self._listeners:
            listener(driver)

    def on_add(self, listener: Callable[[DriverInfo], None]) -> None:
        """Call listener for each driver, also for those that are attached."""
        self._listeners.append(listener)
        for driver in self:
            listener(driver)
