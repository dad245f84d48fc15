"""Snapshot of a cluster's objects of an installation, read once. Reports kinds that the reader may not list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import yaml

from tonnage.base.errors import ApiError, ApiNotFoundError, ApiUnreadableError
from tonnage.base.option import Values, convert
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import ConfigMap, Event, Lease, Node, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.matching import class_name
from tonnage.kubernetes.api.meta import KubeObject, ObjectMeta, PartialObject
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from tonnage.kubernetes.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from tonnage.kubernetes.api.workloads import DaemonSet, Deployment
from tonnage.kubernetes.client.client import Client
from tonnage.node.config.node import NODE_FILE
from tonnage.provisioning.capacity.node_template import is_template

T = TypeVar("T", bound=KubeObject)
AGENTS = "app.kubernetes.io/name=tonnage,app.kubernetes.io/component=node"
CONTROLLERS = "app.kubernetes.io/name=tonnage,app.kubernetes.io/component=controller"
SCHEDULERS = "app.kubernetes.io/name=tonnage,app.kubernetes.io/component=scheduler"
AGENT_POLICIES = (
    "tonnage-agent",
    "tonnage-agent-claims",
    "tonnage-agent-volumes",
    "tonnage-agent-snapshots",
    "tonnage-agent-capacity",
    "tonnage-agent-certificates",
    "tonnage-agent-bindings",
    "tonnage-agent-classes",
)
MOST_EVENTS = 50
"""Maximum number of claims whose Events are read: more waiting claims have a common cause."""
ABNORMAL = "VolumeConditionAbnormal"
HEALTH = (ABNORMAL, "VolumeConditionNormal")
"""Reasons of the Events that tell of the health of volumes, the first of an abnormal one."""
_SNAPSHOTS = f"/apis/{kinds.SNAPSHOTS.api_version}"
_GROUPS = (
    "/api/v1",
    "/apis/storage.k8s.io/v1",
    "/apis/admissionregistration.k8s.io/v1",
    "/apis/apps/v1",
    _SNAPSHOTS,
)


class WrittenMeta(ObjectMeta, frozen=True):
    """Metadata with managedFields: which manager wrote which fields."""

    managed_fields: list[dict[str, Any]] = []


class Published(CSIStorageCapacity, frozen=True):
    """A capacity object with managedFields."""

    metadata: WrittenMeta = WrittenMeta()

    def writers(self, *fields: str) -> list[str]:
        """Who wrote those fields; empty where the API server does not keep that."""
        owned = [(e.get("manager", ""), e.get("fieldsV1") or {}) for e in self.metadata.managed_fields]
        return sorted({manager for manager, its in owned if any(f"f:{name}" in its for name in fields)})

    @property
    def written(self) -> str:
        """When it was last written (RFC 3339); "" where the API server does not keep that."""
        return max((str(entry.get("time") or "") for entry in self.metadata.managed_fields), default="")


_ADMISSION = kinds.MUTATING_POLICIES.group
PUBLISHED = Kind(kinds.CAPACITIES.group, kinds.CAPACITIES.kind, kinds.CAPACITIES.plural, Published)
VALIDATING_POLICIES = Kind(
    _ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", PartialObject, namespaced=False
)
VALIDATING_BINDINGS = Kind(
    _ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", PartialObject, namespaced=False
)


@dataclass
class View:
    """An installation in `namespace`, at `now` (seconds since the epoch).

    served: `<group>/<version>/<plural>`. there: existing policies and bindings, `<plural>/<name>`. files: ConfigMap ->
    its
    node's file, or its fault. rejected: kinds that the reader may not list -> the API server's message. unreadable:
    which
    objects are left out, and why. is_box: its controllers are in the process that serves the API.
    """

    namespace: str
    now: float
    version: str = ""
    served: frozenset[str] = frozenset()
    nodes: Sequence[Node] = ()
    csi_nodes: Sequence[CSINode] = ()
    driver: CSIDriver | None = None
    classes: Sequence[StorageClass] = ()
    capacities: Sequence[Published] = ()
    claims: Sequence[PersistentVolumeClaim] = ()
    volumes: Sequence[PersistentVolume] = ()
    agents: Sequence[Pod] = ()
    pods: Sequence[Pod] = ()
    daemon_sets: Sequence[DaemonSet] = ()
    deployments: Sequence[Deployment] = ()
    lease: Lease | None = None
    schedulers: Sequence[Deployment] = ()
    scheduler_lease: Lease | None = None
    there: frozenset[str] = frozenset()
    files: Mapping[str, Values | str] = field(default_factory=dict)
    events: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    health: Sequence[Event] = ()
    snapshot_classes: Sequence[VolumeSnapshotClass] = ()
    snapshots: Sequence[VolumeSnapshot] = ()
    contents: Sequence[VolumeSnapshotContent] = ()
    rejected: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    is_box: bool = False

    @property
    def ours(self) -> list[StorageClass]:
        """Classes of our driver."""
        return [c for c in self.classes if c.provisioner == names.DRIVER]

    @property
    def our_claims(self) -> list[PersistentVolumeClaim]:
        """Claims of our classes."""
        known = {c.metadata.name for c in self.ours}
        return [c for c in self.claims if class_name(c) in known]

    @property
    def our_volumes(self) -> list[PersistentVolume]:
        """PersistentVolumes of our driver."""
        return [v for v in self.volumes if v.spec.csi is not None and v.spec.csi.driver == names.DRIVER]

    @property
    def our_contents(self) -> list[VolumeSnapshotContent]:
        """VolumeSnapshotContents of our driver."""
        return [content for content in self.contents if content.spec.driver == names.DRIVER]

    @property
    def node_names(self) -> set[str]:
        """All nodes."""
        return {n.metadata.name for n in self.nodes}

    @property
    def serving(self) -> list[str]:
        """Nodes whose kubelet has registered our driver."""
        return sorted(c.metadata.name for c in self.csi_nodes if c.driver(names.DRIVER) is not None)

    def agent_of(self, node: str) -> Pod | None:
        """The agent's pod of a node."""
        found = [p for p in self.agents if p.spec.node_name == node and not p.metadata.deleting]
        return next(iter(found), None)

    def is_down(self, node: str) -> bool:
        """Whether the node's agent is known not to work. Agents outside of pods are not seen from here."""
        pod = self.agent_of(node)
        return bool(self.daemon_sets) and (pod is None or not is_ready(pod))

    def scopes(self) -> set[str]:
        """Which claims agents watch, by their files."""
        return {file.get("scope", "auto") for file in self.files.values() if not isinstance(file, str)} or {"auto"}


def is_ready(pod: Pod) -> bool:
    """Whether the pod's Ready condition is true."""
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)


async def read(client: Client, namespace: str, *, now: float) -> View:
    """Read all of it. Raises: UnavailableError without a connection, ApiError for an answer that is no rejection."""
    view = View(namespace, now)
    view.version = str(msgspec.json.decode(await client.read("/version")).get("gitVersion", ""))
    view.served = await _served(client)
    reader = ClusterReader(client)
    view.rejected, view.unreadable = reader.rejected, reader.unreadable
    view.nodes = await reader.all(kinds.NODES)
    view.csi_nodes = await reader.all(kinds.CSI_NODES)
    view.driver = await reader.one(kinds.CSI_DRIVERS, names.DRIVER)
    view.classes = await reader.all(kinds.STORAGE_CLASSES)
    view.capacities = [c for c in await reader.all(PUBLISHED) if not is_template(c)]  # those select no real node
    view.claims = await reader.all(kinds.CLAIMS)
    view.volumes = await reader.all(kinds.VOLUMES)
    view.agents = await reader.all(kinds.PODS, namespace, labels=AGENTS)
    view.daemon_sets = await reader.all(kinds.DAEMON_SETS, namespace, labels=AGENTS)
    view.deployments = await reader.all(kinds.DEPLOYMENTS, namespace, labels=CONTROLLERS)
    view.lease = await reader.one(kinds.LEASES, names.CONTROLLER_LEASE, namespace)
    view.schedulers = await reader.all(kinds.DEPLOYMENTS, namespace, labels=SCHEDULERS)
    if view.schedulers:
        view.scheduler_lease = await reader.one(kinds.LEASES, names.SCHEDULER, namespace)
    view.there = await _policies(reader)
    view.files = {c.metadata.name: _file(c) for c in await reader.all(kinds.CONFIG_MAPS, namespace, labels=AGENTS)}
    await _read_waiting(reader, view)
    view.health = [event for reason in HEALTH for event in await reader.all(kinds.EVENTS, fields=f"reason={reason}")]
    if _SNAPSHOTS.removeprefix("/apis/") + "/" + kinds.SNAPSHOT_CLASSES.plural in view.served:
        view.snapshot_classes = await reader.all(kinds.SNAPSHOT_CLASSES)
        view.snapshots = await reader.all(kinds.SNAPSHOTS)
        view.contents = await reader.all(kinds.SNAPSHOT_CONTENTS)
    return view


class ClusterReader:
    """Reads all that may and can be read, and records the rest as a view does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.rejected: dict[str, str] = {}
        self.unreadable: list[str] = []

    async def listed(self, kind: Kind[T], namespace: str = "", *, labels: str = "", fields: str = "") -> list[T]:
        """Return the readable objects. Raises: ApiError also for a kind that may not be listed."""
        found = await self._client.list(kind, namespace, labels=labels, fields=fields, tolerant=True)
        self.unreadable += [str(one.error) for one in found.unreadable]
        return found.items

    async def all(self, kind: Kind[T], namespace: str = "", *, labels: str = "", fields: str = "") -> list[T]:
        """Return the readable objects, none of a kind that may not be listed."""
        try:
            return await self.listed(kind, namespace, labels=labels, fields=fields)
        except ApiError as failure:
            self._note(kind, failure)
            return []

    async def one(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """Return an object, None without one that may and can be read."""
        try:
            return await self._client.get(kind, name, namespace)
        except ApiError as failure:
            self._note(kind, failure)
            return None

    def _note(self, kind: Kind[T], failure: ApiError) -> None:
        if failure.code == 403:
            self.rejected[kind.plural] = failure.message
        elif isinstance(failure, ApiUnreadableError):
            self.unreadable.append(str(failure))
        elif not isinstance(failure, ApiNotFoundError):
            raise failure


async def _served(client: Client) -> frozenset[str]:
    found = set()
    for path in _GROUPS:
        try:
            answer = msgspec.json.decode(await client.read(path))
        except ApiNotFoundError:
            continue
        version = str(answer.get("groupVersion", ""))
        found |= {f"{version}/{resource['name']}" for resource in answer.get("resources") or ()}
    return frozenset(found)


async def _policies(reader: ClusterReader) -> frozenset[str]:
    wanted = [(kind, names.SCOPE_POLICY) for kind in (kinds.MUTATING_POLICIES, kinds.MUTATING_BINDINGS)]
    wanted += [(kind, name) for kind in (VALIDATING_POLICIES, VALIDATING_BINDINGS) for name in AGENT_POLICIES]
    return frozenset([f"{kind.plural}/{name}" for kind, name in wanted if await reader.one(kind, name) is not None])


def _file(found: ConfigMap) -> Values | str:
    try:
        return convert(yaml.safe_load(found.data.get("node.yaml", "")), NODE_FILE)
    except yaml.YAMLError as failure:
        return " ".join(str(failure).split())
    except msgspec.ValidationError as failure:
        return str(failure)


async def _read_waiting(reader: ClusterReader, view: View) -> None:
    """Pods and Events of claims that wait."""
    waiting = [c for c in view.our_claims if c.status.phase == "Pending" or c.metadata.deleting]
    namespaces = sorted({c.metadata.namespace for c in waiting})
    view.pods = [pod for namespace in namespaces for pod in await reader.all(kinds.PODS, namespace)]
    view.events = {
        meta.uid: await reader.all(kinds.EVENTS, meta.namespace, fields=f"involvedObject.uid={meta.uid}")
        for meta in (claim.metadata for claim in waiting[:MOST_EVENTS])
    }
