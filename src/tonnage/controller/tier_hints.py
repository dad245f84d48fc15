"""Requests for exact capacity, for claims that no tier admits.

A tier is a lower bound: a larger claim may still fit a node of the tier. For each pod that its scheduler could not
place, and each claim with immediate binding and no node, the candidates are nodes whose tier is smaller than the
request, down to an eighth of it. A node of a lower tier cannot have that much. Other nodes whose tier admits the claim
do not matter: the pod may not fit there. The first FIRST candidates get the request, highest tier first, and twice as
many after each ROUND seconds. One large claim thus costs little in a large cluster, and in the end every node was
asked.

The request is in annotations of the class's tier notice, a capacity object that agents watch anyway. It is one write
for any number of nodes. The controller needs no right to write Nodes, which would allow any taint and label. A node
that cannot hold the claim writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tonnage.base.errors import ApiNotFoundError, InvalidError
from tonnage.controller.config import LoopContext
from tonnage.controller.tier_objects import NODES_BY_TIER, tiers_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CAPACITIES, NODES, PODS, STORAGE_CLASSES
from tonnage.kubernetes.api.matching import class_name
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.controller import Keys, Reconciler, on_difference
from tonnage.kubernetes.client.indexes import CLAIMS_UNBOUND, claims, claims_of
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.published import requested_bytes
from tonnage.provisioning.capacity.tier import BEYOND, PATIENT_FROM, Notice
from tonnage.provisioning.claims.bind import is_sent, reschedules_of
from tonnage.provisioning.claims.node_fit import Suitability

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
FIRST = 16
ROUND = 10.0
_TOGETHER = 0.5
"""Seconds for which changes are gathered: a burst of pods is checked once."""
_MOST_CHARACTERS = 200_000
"""Maximum length of node names in one notice: all annotations have 256 KiB."""
_ALL = "all"


@dataclass(frozen=True)
class _Need:
    """Storage that a pod or a claim with immediate binding needs.

    As (class, bytes); pod: for its node constraints.
    """

    sizes: tuple[tuple[str, int], ...]
    constraints: bytes = b""
    pod: Pod | None = field(default=None, compare=False)


class TierNotices(Reconciler[str]):
    """Loop with a single key for the whole cluster."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("tier_hints", workers=1)
        self._client, self._namespace, self._clock = context.client, context.config.namespace, context.clock
        informers = context.informers
        self._since: dict[_Need, float] = {}
        self._classes = self.watch(informers.of(STORAGE_CLASSES))
        self._nodes = self.watch(informers.of(NODES), on_difference(lambda node: set(tiers_of(node)), self._soon))
        self._capacities = self.watch(informers.of(CAPACITIES), self._capacity_changed)
        # Claims and pods that begin or end to wait; pods wait when they were rejected, until they are placed.
        self._claims = self.watch(claims(informers), self._when(_is_waiting))
        self._pods = self.watch(informers.of(PODS, fields=context.pod_fields), self._when(_is_rejected))
        self._nodes.add_index(NODES_BY_TIER, tiers_of)

    async def reconcile(self, key: str) -> float | None:
        """Write the requests for what waits now. Idempotent.

        Returns seconds until more nodes are asked. Raises: ApiError.
        """
        notices = {c.metadata.name: n for c in self._classes if (n := self._notice(c.metadata.name)) is not None}
        if not notices:
            self._since.clear()
            return None
        needs = dict.fromkeys(self._needs(notices))
        now = self._clock.monotonic()
        self._since = {need: self._since.get(need, now) for need in needs}
        asked: dict[str, list[tuple[int, frozenset[str]]]] = {}
        later: float | None = None
        for need, since in self._since.items():
            most = FIRST << min(16, int((now - since) / ROUND))
            for name, size in need.sizes:
                found = self._candidates(name, size, need)
                if found:
                    asked.setdefault(name, []).append((size, frozenset(found[:most])))
                if len(found) > most:
                    later = ROUND
        for name, obj in notices.items():
            await self._tell(obj, asked.get(name, []))
        return later

    def _notice(self, storage_class: str) -> CSIStorageCapacity | None:
        return self._capacities.get(f"{self._namespace}/{tier.object_name(storage_class, names.TIER_NOTICE)}")

    # Waiting pods and claims

    def _needs(self, tiered: Collection[str]) -> Iterator[_Need]:
        """Return what waits for a node in classes with tiers.

        A pod counts only after it was rejected.
        """
        for pod in self._pods:
            if _is_rejected(pod) and (sizes := self._asked_by(pod, tiered)):
                spec = pod.spec
                affinity = spec.affinity.node_affinity if spec.affinity else None
                yield _Need(sizes, msgspec.json.encode((spec.node_selector, affinity, spec.tolerations)), pod)
        for name in tiered:
            storage_class = self._classes.get(name)
            if storage_class is None or storage_class.late:
                continue
            for claim in self._claims.by(CLAIMS_UNBOUND, name):
                if _is_waiting(claim) and (size := requested_bytes(claim)):
                    yield _Need(((name, size),))

    def _asked_by(self, pod: Pod, tiered: Collection[str]) -> tuple[tuple[str, int], ...]:
        """Return what a pod's claims request, summed by driver.

        They may use the same pool.
        """
        waiting = [c for c in claims_of(pod, self._claims) if _is_waiting(c) and class_name(c) in tiered]
        drivers: dict[str, int] = {}
        for claim in waiting:
            driver = self._driver(class_name(claim))
            drivers[driver] = drivers.get(driver, 0) + requested_bytes(claim)
        classes = {class_name(claim): drivers[self._driver(class_name(claim))] for claim in waiting}
        return tuple(sorted((name, size) for name, size in classes.items() if size))

    def _driver(self, name: str) -> str:
        storage_class = self._classes.get(name)
        return names.csi_driver(storage_class.provisioner) if storage_class is not None else ""

    # Candidates

    def _candidates(self, name: str, size: int, need: _Need) -> list[str]:
        """Return nodes whose tier is too low but that may fit, highest tier first."""
        key, found = names.tier_label(name), list[str]()
        chosen = 1 << (size - 1).bit_length() >> 1  # the highest tier that is smaller
        allowed = _allows(need.pod)
        while chosen * BEYOND > size and chosen >= tier.LOWEST:
            nodes = self._nodes.by(NODES_BY_TIER, f"{key}={tier.as_label(chosen)}")
            found += sorted(node.metadata.name for node in nodes if allowed(node))
            chosen >>= 1
        return found

    async def _tell(self, obj: CSIStorageCapacity, asked: list[tuple[int, frozenset[str]]]) -> None:
        """Write a request into a notice, if it differs."""
        nodes, length = set[str](), 0
        for name in sorted(frozenset[str]().union(*(found for _, found in asked))):
            length += len(name) + 1
            if length <= _MOST_CHARACTERS:
                nodes.add(name)
        notes = tier.notes_of(Notice(min((size for size, _ in asked), default=0), frozenset(nodes)))
        have = obj.metadata.annotations
        if all(have.get(key) == value for key, value in notes.items()):
            return
        patch = {"metadata": {"annotations": notes}}
        with suppress(ApiNotFoundError):  # the class has no tiers any more
            await self._client.patch(CAPACITIES, obj.metadata.name, patch, self._namespace)
            log.info("nodes asked to publish exactly class=%s nodes=%d", obj.storage_class_name, len(nodes))

    # Events

    def _soon(self, _: object = None) -> Iterable[str]:
        self.enqueue(_ALL, after=_TOGETHER)
        return ()

    def _when(self, waits: Callable[[T], bool]) -> Keys[T, str]:
        """Reconcile soon after objects that begin or end to wait."""

        def changed(old: T | None, new: T | None) -> Iterable[str]:
            before, after = old is not None and waits(old), new is not None and waits(new)
            return self._soon() if before != after else ()

        return changed

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[str]:
        """Handle notices only."""
        obj = new or old
        assert obj is not None
        return self._soon() if obj.metadata.labels.get(names.TIER) == names.TIER_NOTICE else ()


def _is_rejected(pod: Pod) -> bool:
    """Return whether its scheduler found no node for it."""
    rejected = any(c.type == "PodScheduled" and c.reason == "Unschedulable" for c in pod.status.conditions)
    return rejected and not pod.spec.node_name and not pod.metadata.deleting


def _is_waiting(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim has no node and no volume.

    An often rescheduled claim is held by its node ever longer, until another node publishes capacity.
    """
    is_backing_off = reschedules_of(claim) >= PATIENT_FROM
    return not claim.spec.volume_name and (is_backing_off or not is_sent(claim)) and not claim.metadata.deleting


def _allows(pod: Pod | None) -> Callable[[Node], bool]:
    """Return a filter for nodes that the pod fits by its spec.

    Claims without a pod fit every node.
    """
    if pod is None:
        return lambda node: True
    try:
        suitability = Suitability(pod.spec)
    except InvalidError:
        return lambda node: False
    return lambda node: suitability.of(node)[0]
