"""Which claims belong together: those that one pod needs from this node before it can start.

An ephemeral claim tells its pod, and the pod tells its claims (one GET a pod; a pod's volumes never change). A plain
claim tells nothing; where a pod has several, the controller has written `tonnage.dev/with` on them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim, Pod, claim_name
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.matching import default_class
from tonnage.api.meta import ObjectReference, OwnerReference
from tonnage.api.storage import StorageClass
from tonnage.controllers.drivers import Drivers, NodeScope
from tonnage.errors import ApiNotFound
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer

_REMEMBERED = 2048


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
        self._pods: OrderedDict[str, Pod | None] = OrderedDict()

    async def of(self, claim: PersistentVolumeClaim) -> Group:
        """The claims that go with this one. Raises ApiError, Unavailable."""
        meta = claim.metadata
        owner = pod_owner(claim)
        pod = await self._pod(owner, meta.namespace) if owner else None
        if owner is not None and pod is not None:
            members = pod.claim_names()
            missing = await self._missing(meta.namespace, members, pod)
            return Group(owner.uid, meta.namespace, refer(PODS, pod), _keys(meta.namespace, members), missing)
        together = {n.strip() for n in meta.annotations.get(names.WITH, "").split(",")} - {""}
        if not together or owner is not None:
            return Group(meta.uid, meta.namespace, None, (claim.key,))
        members = sorted(together | {meta.name})
        missing = await self._missing(meta.namespace, members, None)
        return Group(
            f"{meta.namespace}/{','.join(members)}", meta.namespace, None, _keys(meta.namespace, members), missing
        )

    async def _pod(self, owner: OwnerReference, namespace: str) -> Pod | None:
        if owner.uid in self._pods:
            self._pods.move_to_end(owner.uid)
            return self._pods[owner.uid]
        try:
            pod: Pod | None = await self._client.get(PODS, owner.name, namespace)
        except ApiNotFound:
            pod = None
        if pod is not None and pod.metadata.uid != owner.uid:
            pod = None  # the pod is gone and another has its name: garbage collection will take the claim
        self._pods[owner.uid] = pod
        while len(self._pods) > _REMEMBERED:
            self._pods.popitem(last=False)
        return pod

    async def _missing(self, namespace: str, members: Iterable[str], pod: Pod | None) -> tuple[str, ...]:
        absent = [m for m in members if self._claims.get(f"{namespace}/{m}") is None]
        coming = [m for m in absent if await self._will_come(namespace, m, pod)]
        return _keys(namespace, coming)

    async def _will_come(self, namespace: str, name: str, pod: Pod | None) -> bool:
        """Whether a claim that is not here yet is one of ours and still without a node."""
        volumes = pod.spec.volumes if pod is not None else ()
        template = next((v.ephemeral for v in volumes if v.ephemeral and claim_name(_name(pod), v) == name), None)
        if template is not None:
            return self._is_ours(template.volume_claim_template.spec.storage_class_name)
        try:
            claim = await self._client.get(CLAIMS, name, namespace)
        except ApiNotFound:
            return False
        node = claim.metadata.annotations.get(names.SELECTED_NODE, self._scope.node)
        return not claim.spec.volume_name and node == self._scope.node and self._is_ours(claim.spec.storage_class_name)

    def _is_ours(self, class_name: str | None) -> bool:
        found = default_class(self._classes) if class_name is None else self._classes.get(class_name)
        return found is not None and found.late and self._drivers.get(found.provisioner) is not None


def pod_owner(claim: PersistentVolumeClaim) -> OwnerReference | None:
    """The pod that an ephemeral claim belongs to, or None."""
    return next((o for o in claim.metadata.owner_references if o.controller and o.kind == "Pod"), None)


def _name(pod: Pod | None) -> str:
    return pod.metadata.name if pod is not None else ""


def _keys(namespace: str, members: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{namespace}/{m}" for m in members)
