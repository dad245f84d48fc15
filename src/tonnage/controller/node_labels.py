"""Node labels of claims and PVs, where they are missing or wrong.

An agent watches claims by that label. A MutatingAdmissionPolicy or our scheduler writes it together with selected-node.
This controller repairs what they miss: clusters without the policy, nodes with long names (a policy cannot hash),
claims older than the policy, and labels changed by hand. With the policy it finds nothing, so nothing waits for it. An
agent labels the PVs that it creates; one that lost its label gets it again.

No scheduler chose a node for a claim that a person bound to a PV. It gets the PV's node as selected-node, by which its
agent serves it like any other, and the PV gets the label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tonnage.base.errors import ApiNotFoundError, PreconditionError
from tonnage.controller.config import LoopContext, LoopKey
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, NODES, STORAGE_CLASSES, VOLUMES, Kind
from tonnage.kubernetes.api.matching import class_name, is_bound, is_claimed_by
from tonnage.kubernetes.api.meta import KubeObject, ObjectMeta
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.controller import Reconciler, on_add
from tonnage.kubernetes.client.indexes import claimed
from tonnage.kubernetes.client.object_write import patch_object
from tonnage.provisioning.claims.node_scope import provisioner_of

T = TypeVar("T", bound=KubeObject)
CLAIM, VOLUME = "claim", "volume"
_CLAIMS_BY_CLASS = "scoping: claims by class"


class ClaimNodeLabels(Reconciler[LoopKey]):
    """Repairs node labels.

    drivers: CSI drivers of our agents -> topology key of their volumes.
    """

    def __init__(self, context: LoopContext) -> None:
        super().__init__("claim_node_labels")
        self._client, self._drivers, informers = context.client, dict(context.config.drivers), context.informers
        self._classes = informers.of(STORAGE_CLASSES).cache
        self._claims = self.watch(informers.of(CLAIMS), self._claim_changed)
        self._volumes = self.watch(informers.of(VOLUMES), self._volume_changed)
        self._nodes = self.watch(informers.of(NODES), on_add(self._waiting_for))
        self._claims.add_index(_CLAIMS_BY_CLASS, lambda claim: (class_name(claim),))
        self.watch(informers.of(STORAGE_CLASSES), on_add(self._claims_of))

    async def reconcile(self, key: LoopKey) -> None:
        """Repair one label. Idempotent.

        Raises: ApiError; PreconditionError when somebody changes the label back.
        """
        if key.what == CLAIM:
            claim = self._claims.get(key.key)
            node = self._unselected_node_of(claim)
            notes = {names.SELECTED_NODE: node} if node else {}
            await self._put_right(CLAIMS, claim, self._wanted_of_claim(claim), notes)
        else:
            volume = self._volumes.get(key.key)
            await self._put_right(VOLUMES, volume, self._wanted_of_volume(volume), {})

    async def _put_right(self, kind: Kind[T], obj: T | None, wanted: str | None, notes: Mapping[str, str]) -> None:
        if obj is None or wanted is None or (_label(obj.metadata) == wanted and not notes):
            return
        body = {"metadata": {"annotations": dict(notes), "labels": {names.NODE_LABEL: wanted or None}}}
        try:
            now = await patch_object(self._client, kind, obj, body)
        except ApiNotFoundError:
            return
        if _label(now.metadata) != wanted:  # or we would write it again and again
            raise PreconditionError(
                f"{kind.singular} {obj.key}: somebody changes label {names.NODE_LABEL} as it is written"
            )

    def _wanted_of_claim(self, claim: PersistentVolumeClaim | None) -> str | None:
        """Return the label that the claim should have, "" for none.

        None: the claim is not ours.
        """
        if claim is None or claim.metadata.deleting:
            return None
        if node := self._unselected_node_of(claim):
            return names.label_value(node)
        storage_class = self._classes.get(class_name(claim))
        driver = storage_class.provisioner if storage_class is not None else provisioner_of(claim)
        if driver not in self._drivers:
            return None
        return names.label_value(claim.metadata.annotations.get(names.SELECTED_NODE, ""))

    def _unselected_node_of(self, claim: PersistentVolumeClaim | None) -> str:
        """Return the node of the PV of a bound claim without selected-node, "" if several nodes reach it."""
        if claim is None or names.SELECTED_NODE in claim.metadata.annotations or not is_bound(claim):
            return ""
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None or not is_claimed_by(volume, claim) or not (place := self._place_of(volume)):
            return ""
        return next((node.metadata.name for node in self._nodes if names.label_value(node.metadata.name) == place), "")

    def _place_of(self, volume: PersistentVolume) -> str:
        """Return the label of the only node that reaches a PV of ours, "" for another PV."""
        driver = volume.spec.csi.driver if volume.spec.csi is not None else ""
        for key in (self._drivers[driver], names.HOSTNAME_LABEL) if driver in self._drivers else ():
            if len(places := places_of(volume, key)) == 1:
                return places[0]
        return ""

    def _wanted_of_volume(self, volume: PersistentVolume | None) -> str | None:
        """Return the label that the PV should have, by its node affinity.

        None: the PV is not ours, or several nodes reach it, or a person made it and no claim has it.
        """
        if volume is None or volume.spec.csi is None:
            return None
        is_made = volume.metadata.annotations.get(names.PROVISIONED_BY) == volume.spec.csi.driver
        return (self._place_of(volume) or None) if is_made or volume.status.phase == "Bound" else None

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[LoopKey]:
        return self._keys_of(new)

    def _keys_of(self, claim: PersistentVolumeClaim | None) -> Iterable[LoopKey]:
        wanted = self._wanted_of_claim(claim)
        if claim is None or wanted is None:
            return ()
        is_right = wanted == _label(claim.metadata) and not self._unselected_node_of(claim)
        return () if is_right else (LoopKey(CLAIM, claim.key),)

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[LoopKey]:
        if new is None:
            return ()
        bound = [key for name in claimed(new) for key in self._keys_of(self._claims.get(name))]
        is_right = self._wanted_of_volume(new) in (None, _label(new.metadata))
        return bound if is_right else [*bound, LoopKey(VOLUME, new.key)]

    def _waiting_for(self, _node: Node) -> Iterable[LoopKey]:
        """Handle a node that was not known when claims were bound to its PVs."""
        return [key for claim in self._claims if self._unselected_node_of(claim) for key in self._keys_of(claim)]

    def _claims_of(self, added: StorageClass) -> Iterable[LoopKey]:
        """Handle a class that was not known when its claims came."""
        return [LoopKey(CLAIM, claim.key) for claim in self._claims.by(_CLAIMS_BY_CLASS, added.metadata.name)]


def places_of(volume: PersistentVolume, topology_key: str) -> list[str]:
    """Return the values of a topology key in a PV's node affinity.

    None when the PV can be reached from elsewhere too.
    """
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else []
    found: dict[str, None] = {}
    for term in terms:
        values = [e.values for e in term.match_expressions if e.key == topology_key and e.operator == "In"]
        if not values:
            return []
        found.update(dict.fromkeys(values[0]))
    return list(found)


def _label(metadata: ObjectMeta) -> str:
    return metadata.labels.get(names.NODE_LABEL, "")
