"""Volumes that grow by themselves: raises the request of a claim before its volume is full.

The driver is asked for the use of each mounted volume of a class with a rule, every 1 to 60 seconds by how fast it
fills, or by how long it has not been staged. The request is raised in one write; the rest is growth as by a person's
request. Nothing is stored: what the volume has free decides.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiConflictError, ApiError, ApiNotFoundError, InvalidError, TonnageError
from tonnage.csi.client import types
from tonnage.csi.client.types import VolumeUse
from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler, on_add
from tonnage.kubernetes.client.events import NORMAL, WARNING
from tonnage.kubernetes.client.indexes import claimed
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims import autogrow
from tonnage.provisioning.claims.autogrow import AutogrowRule
from tonnage.provisioning.claims.growth import growth_of
from tonnage.provisioning.claims.node_scope import DriverInfo

log = logging.getLogger(__name__)
WORKERS = 8
_FORBIDDEN, _INVALID = 403, 422


@dataclass(frozen=True)
class _Look:
    """The use of a volume at a monotonic time."""

    use: VolumeUse
    at: float


class Autogrow(Reconciler[str]):
    """Loop over this node's bound claims whose class has a rule.

    kubelet: the kubelet's directory, which tells where volumes are staged.
    """

    def __init__(self, node: NodeContext, informers: Informers, kubelet: Path) -> None:
        self._node, self._kubelet = node, kubelet
        self._looks: dict[str, _Look] = {}
        self._pauses: dict[str, float] = {}
        """Seconds after the last look at a volume that is not staged: its pod may stage it soon, or never."""
        self._inodes: dict[str, int] = {}
        """Inodes of a volume when its request was raised: where growth adds none, it is not raised for them again."""
        self._reported: dict[str, str] = {}
        super().__init__("autogrow", workers=WORKERS, backoff=Backoff(1.0, autogrow.LATEST))
        self._claims = self.watch(informers.of(CLAIMS, labels=node.scope.selector), self._claim_changed)
        self._volumes = self.watch(informers.of(VOLUMES, labels=node.scope.selector), on_add(claimed))
        self.watch(informers.of(STORAGE_CLASSES), self._class_changed)
        node.drivers.on_add(lambda _: self._enqueue_all())

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        """Return a claim that was bound, has grown or has another rule; and one that is gone."""
        if new is None:
            return (old.key,) if old is not None else ()
        shape = [_shape(claim) if claim is not None else None for claim in (old, new)]
        return (new.key,) if matching.is_bound(new) and shape[0] != shape[1] else ()

    def _class_changed(self, old: StorageClass | None, new: StorageClass | None) -> Iterable[str]:
        changed = new if new is not None else old
        if changed is None:
            return ()
        return [claim.key for claim in self._claims if claim.spec.storage_class_name == changed.metadata.name]

    def _enqueue_all(self) -> None:
        for claim in self._claims:
            if matching.is_bound(claim):
                self.enqueue(claim.key)

    async def reconcile(self, key: str) -> float | None:
        """Look at one volume, and raise its claim's request if it is due. Returns when to look again."""
        claim = self._claims.get(key)
        found = self._served(claim) if claim is not None else None
        if claim is None or found is None:
            for known in (self._looks, self._pauses, self._reported, self._inodes):
                known.pop(key, None)
            return None
        volume, driver, storage_class = found
        try:
            rule = autogrow.rule_of(claim, storage_class)
        except InvalidError as fault:
            self._tell(claim, WARNING, "AutogrowFailed", f"claim {claim.key}: does not grow by itself: {fault}")
            return None
        if rule is None:
            return None
        if growth_of(claim) is not None:
            return autogrow.LATEST  # it is growing, or waits for capacity and says so
        use = await self._use(volume, driver)
        if use is None:
            self._looks.pop(key, None)
            pause = self._pauses[key] = min(autogrow.LATEST, 2 * self._pauses.get(key, autogrow.SOONEST / 2))
            return pause
        self._pauses.pop(key, None)
        before, now = self._looks.get(key), self._node.clock.monotonic()
        self._looks[key] = _Look(use, now)
        if rule.is_due(use) and (rule.lacks_bytes(use) or self._inodes.get(key) != use.inodes):
            return await self._raise(claim, rule, use)
        self._reported.pop(claim.key, None)
        return rule.pause(use, before.use if before else None, now - before.at if before else 0.0)

    def _served(self, claim: PersistentVolumeClaim) -> tuple[PersistentVolume, DriverInfo, StorageClass] | None:
        """Return the volume, driver and class of a claim that may grow by itself, or None."""
        if not matching.is_bound(claim) or claim.metadata.deleting or claim.spec.volume_mode == "Block":
            return None
        volume = self._volumes.get(claim.spec.volume_name)
        storage_class = self._node.classes.get(claim.spec.storage_class_name or "")
        if volume is None or volume.spec.csi is None or storage_class is None:
            return None
        driver = self._node.drivers.get(volume.spec.csi.driver)
        if driver is None or not driver.reaches(volume) or types.EXPAND_VOLUME not in driver.controller:
            return None
        return volume, driver, storage_class

    async def _use(self, volume: PersistentVolume, driver: DriverInfo) -> VolumeUse | None:
        """Return the use of a staged volume, None while it is not staged here or the driver does not tell."""
        csi = volume.spec.csi
        assert csi is not None
        staged = self._kubelet / "plugins/kubernetes.io/csi" / csi.driver
        path = staged / hashlib.sha256(csi.volume_handle.encode()).hexdigest() / "globalmount"
        try:
            use = await driver.client.volume_use(csi.volume_handle, path)
        except TonnageError as failure:
            log.debug("use of a volume is not known volume=%s error=%s", volume.metadata.name, failure)
            return None
        return use if use.total else None

    async def _raise(self, claim: PersistentVolumeClaim, rule: AutogrowRule, use: VolumeUse) -> float:
        """Raise the request in one write. Returns when to look again."""
        size, free = max(matching.requested(claim), _capacity(claim)), autogrow.describe(use)
        wanted = rule.next_size(size)
        if wanted <= size:
            most = f"it has its maximum of {from_bytes(rule.most)}; remove data, or raise {names.AUTOGROW_MAX}"
            text = f"claim {claim.key}: {free}, and {most}"
            self._tell(claim, WARNING, "AutogrowLimit", text, key="limit")
            return autogrow.LATEST
        meta, body = claim.metadata, {"spec": {"resources": {"requests": {"storage": from_bytes(wanted)}}}}
        try:
            await self._node.client.patch(
                CLAIMS, meta.name, body, meta.namespace, resource_version=meta.resource_version
            )
        except (ApiConflictError, ApiNotFoundError):
            return autogrow.SOONEST  # it has changed: look at it again
        except ApiError as rejection:
            if rejection.code not in (_FORBIDDEN, _INVALID):
                raise
            text = f"claim {claim.key}: {free}, not raised to {from_bytes(wanted)}: {rejection}"
            self._tell(claim, WARNING, "AutogrowFailed", text, key="rejected")
            return autogrow.LATEST
        self._inodes[claim.key] = use.inodes
        raised = f"request raised from {from_bytes(size)} to {from_bytes(wanted)}"
        text = f"{free}: {raised}, at most {from_bytes(rule.most)}"
        self._node.events.record(refer(CLAIMS, claim), NORMAL, "Autogrow", text)
        return autogrow.SOONEST

    def _tell(self, claim: PersistentVolumeClaim, kind: str, reason: str, text: str, *, key: str = "") -> None:
        """Emit an Event once, until the volume has enough again. key: what of it stays the same as numbers change."""
        reported = f"{reason} {key or text}"
        if self._reported.get(claim.key) != reported:
            self._reported[claim.key] = reported
            self._node.events.record(refer(CLAIMS, claim), kind, reason, text)


def _capacity(claim: PersistentVolumeClaim) -> int:
    """Return the bytes that the claim has, which may be more than it requested."""
    try:
        return to_bytes(claim.status.capacity.get("storage", "0"))
    except InvalidError:
        return 0


def _shape(claim: PersistentVolumeClaim) -> object:
    rule = [claim.metadata.annotations.get(key) for key in names.AUTOGROW_KEYS]
    return claim.metadata.uid, matching.is_bound(claim), growth_of(claim), claim.status.capacity, rule
