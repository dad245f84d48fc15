"""Search for the claim group of a claim: all that its pod needs here.

An ephemeral claim names its pod, and the pod names its claims: one GET for each pod, whose volumes never change. Our
scheduler marks a single claim, which needs no GET. For a plain claim, the waiting pods are searched; without one, the
claim-group annotation names the other claims.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.matching import default_class
from tonnage.api.meta import ObjectReference, OwnerReference
from tonnage.api.origin import is_clone, is_populated
from tonnage.api.pods import Pod, claim_name
from tonnage.api.quantity import to_bytes
from tonnage.api.storage import StorageClass
from tonnage.claims.node_scope import CapacitySource, NodeScope
from tonnage.claims.selected_node import withdrawals
from tonnage.errors import ApiNotFound, Invalid
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer
from tonnage.node.driver_set import DriverSet

_REMEMBERED = 512
T = TypeVar("T")


@dataclass(frozen=True)
class _PodClaims:
    """Claims of one pod.

    templates: claim name -> spec of its ephemeral volume. Claims with a data source are not in it; they are read.
    """

    pod: ObjectReference
    claims: tuple[str, ...]
    templates: Mapping[str, PersistentVolumeClaimSpec]


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


class Siblings:
    """Finds the group of a claim."""

    def __init__(
        self,
        client: Client,
        claims: Cache[PersistentVolumeClaim],
        classes: Cache[StorageClass],
        drivers: DriverSet,
        scope: NodeScope,
    ) -> None:
        self._client = client
        self._claims, self._classes = claims, classes
        self._drivers, self._scope = drivers, scope
        self._pods: OrderedDict[str, _PodClaims | None] = OrderedDict()
        self._claimants: OrderedDict[str, list[_PodClaims]] = OrderedDict()

    async def of(self, claim: PersistentVolumeClaim) -> PodClaimGroup:
        """Return the group of a claim. Raises ApiError, Unavailable."""
        meta = claim.metadata
        owner = pod_owner(claim)
        if owner is not None and names.annotation(meta.annotations, names.SINGLE_CLAIM) == meta.uid:
            return _single(claim)
        if owner is not None:
            pod = await self._pod(owner, meta.namespace)
            is_used = pod is not None and meta.name in pod.claims  # an owner need not use the claim that it owns
            return await self._of_pod(meta.namespace, pod) if pod is not None and is_used else _single(claim)
        if self._class(claim.spec) is not None:
            groups = [await self._of_pod(meta.namespace, pod) for pod in await self._users(claim)]
            if groups:
                return next((group for group in groups if not group.missing), groups[0])
        together = {n.strip() for n in names.annotation(meta.annotations, names.CLAIM_GROUP).split(",")} - {""}
        if not together:
            return _single(claim)
        members = sorted(together | {meta.name})
        found = await self._missing(meta.namespace, members, {})
        group = f"{meta.namespace}/{','.join(members)}"
        return PodClaimGroup(group, meta.namespace, None, _keys(meta.namespace, members), *found)

    async def confirm(self, group: PodClaimGroup) -> tuple[tuple[str, ...], int]:
        """Return missing claims that the pod needs, and their max reschedules.

        Reads the API server. Without a waiting pod, no claim is missing.

        Raises: ApiError, Unavailable.
        """
        needed, most = [], 0
        for key in group.missing if group.pod is not None else ():
            try:
                claim = await self._client.get(CLAIMS, key.partition("/")[2], group.namespace)
            except ApiNotFound:
                needed.append(key)
                continue
            if self._will_come(claim):
                needed.append(key)
                most = max(most, withdrawals(claim))
        return tuple(needed), most

    async def _of_pod(self, namespace: str, pod: _PodClaims) -> PodClaimGroup:
        found = await self._missing(namespace, pod.claims, pod.templates)
        return PodClaimGroup(pod.pod.uid, namespace, pod.pod, _keys(namespace, pod.claims), *found)

    async def _users(self, claim: PersistentVolumeClaim) -> list[_PodClaims]:
        """Return the pods that wait for a plain claim.

        Read once each time that the claim gets this node. A StatefulSet's pod is found by its name, as its claims are
        named TEMPLATE-POD.
        """
        meta = claim.metadata
        turn = f"{meta.uid} {withdrawals(claim)}"
        if turn not in self._claimants:
            words = meta.name.split("-")
            pods: list[Pod] = []
            for at in range(1, len(words) - 1) if words[-1].isdecimal() else ():
                with suppress(ApiNotFound):
                    pods.append(await self._client.get(PODS, "-".join(words[at:]), meta.namespace))
                if pods and meta.name in pods[-1].claim_names():
                    break
            else:
                pods = (await self._client.list(PODS, meta.namespace, fields="spec.nodeName=")).items
            users = (p for p in pods if meta.name in p.claim_names() and not p.metadata.deleting and not p.terminated)
            _remember(self._claimants, turn, [_claims_of(p) for p in users])
        return self._claimants[turn]

    async def _pod(self, owner: OwnerReference, namespace: str) -> _PodClaims | None:
        if owner.uid in self._pods:
            self._pods.move_to_end(owner.uid)
            return self._pods[owner.uid]
        found = None
        try:
            pod = await self._client.get(PODS, owner.name, namespace)
            # Another uid: the owner is gone and another pod has its name. Garbage collection deletes the claim.
            found = _claims_of(pod) if pod.metadata.uid == owner.uid else None
        except ApiNotFound:
            pass
        _remember(self._pods, owner.uid, found)
        return found

    async def _missing(
        self, namespace: str, members: Iterable[str], templates: Mapping[str, PersistentVolumeClaimSpec]
    ) -> tuple[
        frozenset[str], tuple[str, ...], tuple[PersistentVolumeClaim, ...], tuple[tuple[CapacitySource, int], ...]
    ]:
        """Sort a pod's claims into present, missing and clones.

        Returns keys of present and of missing claims, all clones, and what the missing ones request.
        """
        present, coming, copies = set(), dict[str, PersistentVolumeClaimSpec](), []
        for name in members:
            if is_there(self._claims.get(f"{namespace}/{name}")):
                present.add(name)
                continue
            if name in templates:
                if self._class(templates[name]) is not None:
                    coming[name] = templates[name]
                continue
            try:
                claim = await self._client.get(CLAIMS, name, namespace)
            except ApiNotFound:
                continue
            if self._will_come(claim):
                coming[name] = claim.spec
            copies += [claim] if is_clone(claim) else []
        asked = tuple(need for spec in coming.values() if (need := self._need(spec)) is not None)
        return frozenset(_keys(namespace, present)), _keys(namespace, coming), tuple(copies), asked

    def _will_come(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether a claim without this node will get it.

        True for one of our claims without a volume, or one that will be created again. If the claim has another node
        now, one of the claims must be rescheduled before the pod fits either node.
        """
        if is_populated(claim):
            return False
        return (not claim.spec.volume_name or claim.metadata.deleting) and self._class(claim.spec) is not None

    def _class(self, spec: PersistentVolumeClaimSpec) -> StorageClass | None:
        """Return the class if it is late binding and of one of our drivers."""
        name = spec.storage_class_name
        found = default_class(self._classes) if name is None else self._classes.get(name)
        driver = self._drivers.get(found.provisioner) if found is not None and found.late else None
        return found if driver is not None and found is not None and not driver.publishes_ahead(found) else None

    def _need(self, spec: PersistentVolumeClaimSpec) -> tuple[CapacitySource, int] | None:
        storage_class = self._class(spec)
        driver = self._drivers.get(storage_class.provisioner) if storage_class is not None else None
        if storage_class is None or driver is None:
            return None
        try:
            return driver.source(storage_class), to_bytes(spec.resources.requests["storage"])
        except (KeyError, Invalid):
            return None


def pod_owner(claim: PersistentVolumeClaim) -> OwnerReference | None:
    """Return the pod that an ephemeral claim belongs to, or None."""
    return next((o for o in claim.metadata.owner_references if o.controller and o.kind == "Pod"), None)


def is_there(claim: PersistentVolumeClaim | None) -> bool:
    """Return whether a claim of the node's cache will stay.

    A deleted claim is created again before its pod can start. A volume populator's claim belongs to no group.
    """
    return claim is not None and not claim.metadata.deleting and not is_populated(claim)


def _claims_of(pod: Pod) -> _PodClaims:
    templates = {
        claim_name(pod.metadata.name, v): v.ephemeral.volume_claim_template.spec
        for v in pod.spec.volumes
        if v.ephemeral is not None
        and v.ephemeral.volume_claim_template.spec.data_source_ref is None
        and v.ephemeral.volume_claim_template.spec.data_source is None
    }
    return _PodClaims(refer(PODS, pod), tuple(pod.claim_names()), templates)


def _single(claim: PersistentVolumeClaim) -> PodClaimGroup:
    meta = claim.metadata
    owner = pod_owner(claim)
    pod = ObjectReference("v1", "Pod", meta.namespace, owner.name, owner.uid) if owner is not None else None
    return PodClaimGroup(pod.uid if pod else meta.uid, meta.namespace, pod, (claim.key,), frozenset((claim.key,)))


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    while len(known) > _REMEMBERED:
        known.popitem(last=False)


def _keys(namespace: str, members: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{namespace}/{m}" for m in members)
