"""Which claims belong together: those that one pod needs from this node before it can start.

An ephemeral claim tells its pod, and the pod tells its claims (one GET a pod; a pod's volumes never change); where our
scheduler sent it, the claim may tell that it is the only one. A plain claim tells nothing; where a pod has several, the
controller has written `tonnage.dev/with` on them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.matching import default_class
from tonnage.api.meta import ObjectReference, OwnerReference
from tonnage.api.origin import is_clone
from tonnage.api.pods import Pod, claim_name
from tonnage.api.quantity import to_bytes
from tonnage.api.storage import StorageClass
from tonnage.controllers.drivers import Drivers, NodeScope
from tonnage.controllers.ledger import Source
from tonnage.controllers.sending import withdrawals
from tonnage.errors import ApiNotFound, Invalid
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer

_REMEMBERED = 512


@dataclass(frozen=True)
class _PodClaims:
    """What is remembered of a pod. templates: claim name -> what its ephemeral volume asks; those that are to be copies
    are left out, and looked at."""

    pod: ObjectReference
    claims: tuple[str, ...]
    templates: Mapping[str, PersistentVolumeClaimSpec]


@dataclass(frozen=True)
class Group:
    """Claims (by key) of one pod, the asking one included. pod: None where it is not known.

    present: those that are here. missing: those that must still be sent here before the pod can start. coming: what
    they ask, as far as it is known.
    """

    id: str
    namespace: str
    pod: ObjectReference | None
    claims: tuple[str, ...]
    present: frozenset[str]
    missing: tuple[str, ...] = ()
    copies: tuple[PersistentVolumeClaim, ...] = ()
    """Those that were not sent here and are to be copies of others (origin.py)."""
    coming: tuple[tuple[Source, int], ...] = ()


class Siblings:
    """Finds the group of a claim."""

    def __init__(
        self,
        client: Client,
        claims: Cache[PersistentVolumeClaim],
        classes: Cache[StorageClass],
        drivers: Drivers,
        scope: NodeScope,
    ) -> None:
        self._client = client
        self._claims, self._classes = claims, classes
        self._drivers, self._scope = drivers, scope
        self._pods: OrderedDict[str, _PodClaims | None] = OrderedDict()

    async def of(self, claim: PersistentVolumeClaim) -> Group:
        """The claims that go with this one. Raises ApiError, Unavailable."""
        meta = claim.metadata
        owner = pod_owner(claim)
        if owner is not None and meta.annotations.get(names.ALONE) == meta.uid:
            pod_ref = ObjectReference(
                api_version="v1", kind="Pod", namespace=meta.namespace, name=owner.name, uid=owner.uid
            )
            return Group(owner.uid, meta.namespace, pod_ref, (claim.key,), frozenset((claim.key,)))
        pod = await self._pod(owner, meta.namespace) if owner else None
        if owner is not None and pod is not None:
            found = await self._missing(meta.namespace, pod.claims, pod.templates)
            return Group(owner.uid, meta.namespace, pod.pod, _keys(meta.namespace, pod.claims), *found)
        together = {n.strip() for n in meta.annotations.get(names.WITH, "").split(",")} - {""}
        if not together or owner is not None:
            return Group(meta.uid, meta.namespace, None, (claim.key,), frozenset((claim.key,)))
        members = sorted(together | {meta.name})
        found = await self._missing(meta.namespace, members, {})
        group = f"{meta.namespace}/{','.join(members)}"
        return Group(group, meta.namespace, None, _keys(meta.namespace, members), *found)

    async def confirm(self, group: Group) -> tuple[tuple[str, ...], int]:
        """Which of the missing claims the pod still needs, and the most that one of them was rescheduled; read from the
        API server. Raises ApiError, Unavailable."""
        needed, most = [], 0
        for key in group.missing:
            try:
                claim = await self._client.get(CLAIMS, key.partition("/")[2], group.namespace)
            except ApiNotFound:
                needed += [key] if group.pod is not None else []
                continue
            if self._will_come(claim):
                needed.append(key)
                most = max(most, withdrawals(claim))
        if needed and group.pod is None and not await self._is_needed(group, needed):
            needed = []
        return tuple(needed), most

    async def _is_needed(self, group: Group, missing: Iterable[str]) -> bool:
        """Whether each pod that waits for claims here needs one of the missing ones, too: plain claims may be shared by
        pods, and one of these may be complete."""
        absent = {key.partition("/")[2] for key in missing}
        here = {key.partition("/")[2] for key in group.claims} - absent
        pods = (await self._client.list(PODS, group.namespace)).items
        waiting = [set(p.claim_names()) for p in pods if not p.spec.node_name and not p.metadata.deleting]
        users = [claims for claims in waiting if claims & here]
        return bool(users) and all(claims & absent for claims in users)

    async def _pod(self, owner: OwnerReference, namespace: str) -> _PodClaims | None:
        if owner.uid in self._pods:
            self._pods.move_to_end(owner.uid)
            return self._pods[owner.uid]
        found = None
        try:
            pod = await self._client.get(PODS, owner.name, namespace)
            # With another uid the pod is gone and another has its name: garbage collection will take the claim.
            found = _claims_of(pod) if pod.metadata.uid == owner.uid else None
        except ApiNotFound:
            pass
        self._pods[owner.uid] = found
        while len(self._pods) > _REMEMBERED:
            self._pods.popitem(last=False)
        return found

    async def _missing(
        self, namespace: str, members: Iterable[str], templates: Mapping[str, PersistentVolumeClaimSpec]
    ) -> tuple[frozenset[str], tuple[str, ...], tuple[PersistentVolumeClaim, ...], tuple[tuple[Source, int], ...]]:
        """Keys of those that are here and of those that will come, all that are to be copies, and what those that come
        ask."""
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
        """Whether a claim that is not here yet is one of ours without a volume, or is to be made anew. Has it another
        node now, the pod can be on neither before one of the claims is rescheduled."""
        return (not claim.spec.volume_name or claim.metadata.deleting) and self._class(claim.spec) is not None

    def _class(self, spec: PersistentVolumeClaimSpec) -> StorageClass | None:
        """The class, if the scheduler sends its claims to one of our drivers."""
        name = spec.storage_class_name
        found = default_class(self._classes) if name is None else self._classes.get(name)
        driver = self._drivers.get(found.provisioner) if found is not None and found.late else None
        return found if driver is not None and found is not None and not driver.publishes_ahead(found) else None

    def _need(self, spec: PersistentVolumeClaimSpec) -> tuple[Source, int] | None:
        storage_class = self._class(spec)
        driver = self._drivers.get(storage_class.provisioner) if storage_class is not None else None
        if storage_class is None or driver is None:
            return None
        try:
            return driver.source(storage_class), to_bytes(spec.resources.requests["storage"])
        except (KeyError, Invalid):
            return None


def pod_owner(claim: PersistentVolumeClaim) -> OwnerReference | None:
    """The pod that an ephemeral claim belongs to, or None."""
    return next((o for o in claim.metadata.owner_references if o.controller and o.kind == "Pod"), None)


def is_there(claim: PersistentVolumeClaim | None) -> bool:
    """Whether a claim of the node's cache will stay: one that is deleted is made anew before its pod can start."""
    return claim is not None and not claim.metadata.deleting


def _claims_of(pod: Pod) -> _PodClaims:
    templates = {
        claim_name(pod.metadata.name, v): v.ephemeral.volume_claim_template.spec
        for v in pod.spec.volumes
        if v.ephemeral is not None
        and v.ephemeral.volume_claim_template.spec.data_source_ref is None
        and v.ephemeral.volume_claim_template.spec.data_source is None
    }
    return _PodClaims(refer(PODS, pod), tuple(pod.claim_names()), templates)


def _keys(namespace: str, members: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{namespace}/{m}" for m in members)
