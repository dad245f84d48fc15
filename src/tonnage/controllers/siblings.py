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
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.matching import default_class
from tonnage.api.meta import ObjectReference, OwnerReference
from tonnage.api.origin import is_clone
from tonnage.api.pods import Pod, claim_name
from tonnage.api.storage import StorageClass
from tonnage.controllers.drivers import Drivers, NodeScope
from tonnage.errors import ApiNotFound
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer

_REMEMBERED = 512


@dataclass(frozen=True)
class _PodClaims:
    """What is remembered of a pod. templates: claim name -> class named by its ephemeral volume (None: default); those
    that are to be copies are left out, and looked at."""

    pod: ObjectReference
    claims: tuple[str, ...]
    templates: Mapping[str, str | None]


@dataclass(frozen=True)
class Group:
    """Claims (by key) of one pod, the asking one included. pod: None where it is not known.

    missing: those that must still be sent here before the pod can start.
    """

    id: str
    namespace: str
    pod: ObjectReference | None
    claims: tuple[str, ...]
    missing: tuple[str, ...] = ()
    copies: tuple[PersistentVolumeClaim, ...] = ()
    """Those that were not sent here and are to be copies of others (origin.py)."""


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
            return Group(owner.uid, meta.namespace, pod_ref, (claim.key,))
        pod = await self._pod(owner, meta.namespace) if owner else None
        if owner is not None and pod is not None:
            missing, copies = await self._missing(meta.namespace, pod.claims, pod.templates)
            return Group(owner.uid, meta.namespace, pod.pod, _keys(meta.namespace, pod.claims), missing, copies)
        together = {n.strip() for n in meta.annotations.get(names.WITH, "").split(",")} - {""}
        if not together or owner is not None:
            return Group(meta.uid, meta.namespace, None, (claim.key,))
        members = sorted(together | {meta.name})
        missing, copies = await self._missing(meta.namespace, members, {})
        keys, group = _keys(meta.namespace, members), f"{meta.namespace}/{','.join(members)}"
        return Group(group, meta.namespace, None, keys, missing, copies)

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
        self, namespace: str, members: Iterable[str], templates: Mapping[str, str | None]
    ) -> tuple[tuple[str, ...], tuple[PersistentVolumeClaim, ...]]:
        """Keys of those that will come, and all that are to be copies."""
        coming, copies = [], []
        for name in members:
            if self._claims.get(f"{namespace}/{name}") is not None:
                continue
            if name in templates:
                coming += [name] if self._is_ours(templates[name]) else []
                continue
            try:
                claim = await self._client.get(CLAIMS, name, namespace)
            except ApiNotFound:
                continue
            coming += [name] if self._will_come(claim) else []
            copies += [claim] if is_clone(claim) else []
        return _keys(namespace, coming), tuple(copies)

    def _will_come(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a claim that is not here yet is one of ours and still without a node."""
        node = claim.metadata.annotations.get(names.SELECTED_NODE, self._scope.node)
        return not claim.spec.volume_name and node == self._scope.node and self._is_ours(claim.spec.storage_class_name)

    def _is_ours(self, class_name: str | None) -> bool:
        found = default_class(self._classes) if class_name is None else self._classes.get(class_name)
        return found is not None and found.late and self._drivers.get(found.provisioner) is not None


def pod_owner(claim: PersistentVolumeClaim) -> OwnerReference | None:
    """The pod that an ephemeral claim belongs to, or None."""
    return next((o for o in claim.metadata.owner_references if o.controller and o.kind == "Pod"), None)


def _claims_of(pod: Pod) -> _PodClaims:
    templates = {
        claim_name(pod.metadata.name, v): v.ephemeral.volume_claim_template.spec.storage_class_name
        for v in pod.spec.volumes
        if v.ephemeral is not None
        and v.ephemeral.volume_claim_template.spec.data_source_ref is None
        and v.ephemeral.volume_claim_template.spec.data_source is None
    }
    return _PodClaims(refer(PODS, pod), tuple(pod.claim_names()), templates)


def _keys(namespace: str, members: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{namespace}/{m}" for m in members)
