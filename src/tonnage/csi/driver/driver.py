"""A CSI driver: a name over pools, and the ids of its volumes.

Several drivers (names) may share the same pools and their InFlight. An id is `<pool>/<volume name>`; a name is valid in
a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

from tonnage import __version__
from tonnage.base.aio.clock import Clock, RealClock, rfc3339
from tonnage.base.errors import InvalidError, NotFoundError, TonnageError, UnavailableError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.filling import Fillings
from tonnage.csi.driver.hooks import Hooks, NoHooks
from tonnage.csi.driver.io_limits import Throttle
from tonnage.csi.driver.pool_opener import Openings
from tonnage.csi.driver.reclaimed import Reclaimed
from tonnage.csi.server.inflight import InFlight
from tonnage.kubernetes.api import names
from tonnage.storage.content.access import ContentAccess
from tonnage.storage.content.hosts import FetchPolicy
from tonnage.storage.pools.base.contract import MAX_NAME, PoolVolume, VolumeCondition, check_name, is_inline
from tonnage.storage.pools.core.pool import Pool

OWNER_DRIVER = "driver"
OWNER_NAME = "name"
"""Keys of a volume's owner record that are ours: the driver's name, the name the CO chose."""
CONTEXT_CREATED = "tonnage.dev/created"
"""Key of a volume's context: when it was made, RFC 3339."""
MAX_POOL = 63
MAX_VOLUME = 64
"""Bytes of a volume's name, so that the id keeps CSI's limit of 128."""
_MAPPED = re.compile(r"n-.*-[0-9a-f]{32}", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
OWNER_KEYS = frozenset(
    {
        names.CSI_PVC_NAME,
        names.CSI_PVC_NAMESPACE,
        names.CSI_PV_NAME,
        names.PARAM_CLUSTER,
        names.PARAM_EPHEMERAL,
        names.PARAM_RECLAIM,
        names.PARAM_CLASS,
        names.UNDELETE,
    }
)
"""Parameters that are stored in the owner record and returned in the volume's context."""


@dataclass(frozen=True)
class Driver:
    """The configuration and pools that the services of one driver name share.

    node_id: the node's name. default_pool: name of the pool for requests that name none. state: the driver's own
    directory (0700), where inline volumes are staged. roots: directories that must contain callers' staging and target
    paths (the kubelet's), anywhere when there is none. sources: allowed directories for populating volumes. fetch:
    hosts that content may be fetched from. image_stores: where images are looked up, in this order. fillings,
    in_flight, throttle: shared by drivers over the same pools. openings: opens the pools, and retries failed ones; None
    where they are known to be open. hooks: of the agent over these pools. Raises: InvalidError when the configuration
    is inconsistent.
    """

    node_id: str
    pools: Mapping[str, Pool]
    state: Path
    name: str = names.DRIVER
    version: str = __version__
    default_pool: str = ""
    topology_key: str = names.TOPOLOGY_NODE
    max_volumes: int = 0
    roots: tuple[Path, ...] = ()
    sources: tuple[Path, ...] = ()
    fetch: FetchPolicy = field(default_factory=FetchPolicy)
    image_stores: tuple[Path, ...] = ()
    fillings: Fillings = field(default_factory=Fillings)
    in_flight: InFlight = field(default_factory=InFlight)
    throttle: Throttle = field(default_factory=Throttle)
    openings: Openings | None = None
    clock: Clock = field(default_factory=RealClock)
    hooks: Hooks = field(default_factory=NoHooks)

    def __post_init__(self) -> None:
        if not self.pools:
            raise InvalidError(f"driver {self.name}: needs at least one pool")
        names.check_driver_name(self.name)
        if self.default_pool and self.default_pool not in self.pools:
            raise InvalidError(f"default pool {self.default_pool!r} is not among {', '.join(self.pools)}")
        if not self.node_id or len(self.node_id.encode()) > 256:
            raise InvalidError(f"node id {self.node_id[:40]!r}: want 1 to 256 bytes")
        for pool in self.pools:
            if len(check_name(pool)) > MAX_POOL:
                raise InvalidError(f"pool name {pool!r}: want at most {MAX_POOL} characters")

    @property
    def topology(self) -> dict[str, str]:
        """The segment of this node."""
        return {self.topology_key: names.label_value(self.node_id)}

    @property
    def first_pool(self) -> Pool:
        """The default pool."""
        return self.pools[self.default_pool] if self.default_pool else next(iter(self.pools.values()))

    @property
    def access(self) -> ContentAccess:
        """What volumes may be filled with here."""
        return ContentAccess(self.fetch, self.image_stores, self.sources)

    @property
    def reclaimed(self) -> Reclaimed:
        """The volumes whose data was deleted before they are."""
        return Reclaimed(self.state)

    async def most_volumes(self) -> int:
        """Maximum number of volumes on the node, 0 for unlimited: the pools' sum, or a smaller configured number.

        A pool that cannot be read sets no limit.
        """
        bounds: dict[str, int] = {}
        for pool in self.pools.values():
            try:
                bound = await pool.volume_limit()
            except TonnageError:
                bound = 0
            bounds[pool.kind if pool.features.shares_limit else f"pool {pool.name}"] = bound
        together = sum(bounds.values()) if all(bounds.values()) else 0
        return min(filter(None, (together, self.max_volumes)), default=0)

    def pool(self, name: str) -> Pool:
        """The pool of that name, the default one for "". Raises: InvalidError naming the existing ones."""
        if not name:
            return self.first_pool
        if name not in self.pools:
            # Without the node's name: equal nodes then have equal messages, which are aggregated.
            raise InvalidError(f"there is no pool {name[:63]!r} (there is {', '.join(self.pools)})")
        return self.pools[name]

    def locate(self, vid: str) -> tuple[Pool, str] | None:
        """Pool and volume name of an id; None when no volume of ours can have it.

        Raises: UnavailableError when its pool is not served here: an unreachable volume is not deleted.
        """
        parts = split_id(vid)
        if parts is None:
            return None
        pool, name = parts
        if pool not in self.pools:
            raise UnavailableError(
                f"volume {vid}: pool {pool!r} is not served on node {self.node_id} (it has {', '.join(self.pools)})"
            )
        return self.pools[pool], name

    def place(self, vid: str, kind: str = "volume") -> tuple[Pool, str]:
        """Pool and name of an id. Raises: NotFoundError when none of ours can have it, UnavailableError as locate()."""
        if (place := self.locate(vid)) is None:
            raise NotFoundError(f"there is no {kind} {vid!r} on node {self.node_id}")
        return place

    def check_open(self, pool: Pool) -> None:
        """Raises: UnavailableError with the reason when a pool could not be opened."""
        if self.openings is not None and (why := self.openings.why(pool.name)):
            raise UnavailableError(f"pool {pool.name} is not open: {why}")

    async def find(self, vid: str) -> tuple[Pool, PoolVolume]:
        """The volume with that id, for its use.

        Raises: NotFoundError, UnavailableError when its pool is not open, PreconditionError for a reclaimed volume.
        """
        pool, name = self.place(vid)
        self.check_open(pool)
        self.reclaimed.check(pool.name, name)
        return pool, await pool.get(name)

    async def find_inline(self, handle: str) -> tuple[Pool, PoolVolume] | None:
        """The inline volume with that handle, in any pool.

        Raises: UnavailableError when no open pool has it and other pools are not open.
        """
        name = inline_name(handle)
        unseen: UnavailableError | None = None
        for pool in self.pools.values():
            try:
                self.check_open(pool)
                volume = await pool.get(name)
            except NotFoundError:
                continue
            except UnavailableError as failure:
                unseen = failure
                continue
            if is_inline(volume.owner):
                return pool, volume
        if unseen is not None:
            raise unseen
        return None


def context_of(volume: PoolVolume) -> dict[str, str]:
    """The volume's context, read from its record and so always the same."""
    context = {key: value for key, value in volume.owner.items() if key in OWNER_KEYS}
    context[CONTEXT_CREATED] = rfc3339(volume.created)
    if volume.place:
        context[names.DISK] = volume.place
    return context


def condition_of(condition: VolumeCondition) -> csi_pb2.VolumeCondition:
    """A volume's condition. CSI requires a message also for a healthy volume."""
    return csi_pb2.VolumeCondition(abnormal=condition.abnormal, message=condition.message)


def named(owner: Mapping[str, str], name: str, original: str) -> dict[str, str]:
    """An owner record, with the name that the CO chose where the volume's name differs from it."""
    return {**owner, OWNER_NAME: original} if name != original else dict(owner)


def lock_key(method: str, request: Message) -> str | None:
    """The key of InFlight for a request; None for calls that change no volume."""
    if method == "CreateVolume":
        return safe_name(request.name)  # type: ignore[attr-defined]
    if method == "CreateSnapshot":
        return f"{safe_name(request.name)} (snapshot)"  # type: ignore[attr-defined]
    if method == "DeleteSnapshot":
        return f"{lock_name(request.snapshot_id)} (snapshot)"  # type: ignore[attr-defined]
    if method == "CreateVolumeGroupSnapshot":
        return group_lock(safe_name(request.name))  # type: ignore[attr-defined]
    if method == "DeleteVolumeGroupSnapshot":
        return group_lock(request.group_snapshot_id)  # type: ignore[attr-defined]
    if method in _LOCKED:
        return lock_name(request.volume_id)  # type: ignore[attr-defined]
    return None


def group_lock(group: str) -> str:
    """The lock key of a group snapshot."""
    return f"{group} (group)"


_LOCKED = frozenset(
    {"DeleteVolume", "NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume"}
    | {"ControllerExpandVolume", "ControllerModifyVolume", "NodeExpandVolume"}
    | {"ReclaimVolume", "RestoreVolume", "DeleteUnusedVolume"}
)


def safe_name(name: str, *, longest: int = MAX_VOLUME) -> str:
    """The volume name for a CO's name: the same if valid in a path, else `n-<alike>-<hash>`.

    Names that look like the mapped form are mapped too, so two names never collide.
    """
    try:
        if len(name) <= longest and not _MAPPED.fullmatch(name):
            return check_name(name)
    except InvalidError:
        pass
    alike = _UNSAFE.sub("-", name).strip("-.")[:24]
    return f"n-{alike}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def inline_name(handle: str) -> str:
    """The volume name for the handle of an inline volume."""
    return safe_name(handle, longest=MAX_NAME)


def id_of(pool: str, name: str) -> str:
    """The id of a volume."""
    return f"{pool}/{name}"


def split_id(vid: str) -> tuple[str, str] | None:
    """Pool and name of an id; None without our form, which no volume of ours can have."""
    pool, slash, name = vid.partition("/")
    if not slash or not pool:
        return None
    try:
        return pool, check_name(name)
    except InvalidError:
        return None


def lock_name(vid: str) -> str:
    """The lock key of a call on this id: the volume's name, which CreateVolume knows as well."""
    parts = split_id(vid)
    return parts[1] if parts else inline_name(vid)
