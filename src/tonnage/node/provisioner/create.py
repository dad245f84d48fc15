"""Creation of a claim's volume and PV, and the PV's binding.

Errors are classified as external-provisioner does. docs/reference/kubernetes/binding.md has the order of writes. Every
step is idempotent: a creation is repeated until its outcome is known, even if its claim is deleted meanwhile. A volume
that its claim no longer needs here is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from tonnage.base.errors import (
    ApiAlreadyExistsError,
    ApiNotFoundError,
    PreconditionError,
    TonnageError,
    UnavailableError,
)
from tonnage.base.observe import metrics, trace
from tonnage.csi.client.types import CreatedVolume
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES
from tonnage.kubernetes.client.client import refer
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.rejection import REASON, failed_text, report
from tonnage.node.provisioner.state import LOOK_EVERY, ClaimEvent, Creation, Hold
from tonnage.provisioning.capacity.ledger import Stage
from tonnage.provisioning.claims import provisioning
from tonnage.provisioning.claims.bind import bind, find
from tonnage.provisioning.claims.node_scope import DriverInfo, claim_uid, is_ephemeral
from tonnage.provisioning.claims.provisioning import ClaimRequest, read_secret

log = logging.getLogger(__name__)
SLOW = 1.0
"""Seconds after which an Event reports that a volume is being created."""
TELL_EVERY = 30.0
"""Minimum seconds between two Events about the filling of one volume."""
MOST_FAILURES = 3
"""CreateVolume calls in a row that fail with INTERNAL until another node is tried: the fault may be this node's."""
PAUSE = 60.0
"""Seconds for which a list without the claim's volume is valid: another CreateVolume call may still end."""


async def provision(node: NodeContext, uid: str, creation: Creation) -> None:
    """Create the volume, then the PV, and bind it; or continue with that.

    A creation that ends without a volume is removed from the table. Raises an error for which the claim waits for its
    back-off.
    """
    claim = creation.claim.metadata
    about = {
        "k8s.persistentvolumeclaim.uid": uid,
        "k8s.persistentvolumeclaim.name": claim.name,
        "k8s.namespace.name": claim.namespace,
        "k8s.storageclass.name": creation.storage_class.metadata.name,
    }
    with trace.span("provision", about) as span:
        volume = creation.volume or await _create(node, uid, creation)
        if volume is None:
            span.fail("no volume was made; the claim's Events say why")
        else:
            await _deliver(node, uid, creation, volume)


# CreateVolume


async def _create(node: NodeContext, uid: str, creation: Creation) -> CreatedVolume | None:
    """Call the driver; return None if the creation ended without a volume."""
    request, driver, ledger, state = creation.request, creation.driver, node.ledger, node.table.of(uid)
    state.call(node.clock.monotonic())
    try:
        secrets = await read_secret(node.client, request.secret)
    except TonnageError as failure:  # no call was made
        reserved = ledger.get(uid)
        if reserved is None or reserved.stage is not Stage.CREATING:
            state.happened(ClaimEvent.NOT_CALLED)
        count_failure(creation.claim)
        _report_failure(node, creation, failure)
        raise
    if ledger.get(uid) is None:  # the claim left this node before a call was made
        state.happened(ClaimEvent.NOT_CALLED)
        return None
    ledger.start(uid)
    slow = asyncio.create_task(_report_if_slow(node, creation))
    try:
        volume = await driver.client.create_volume(
            request.name,
            request.size,
            request.capabilities,
            parameters=request.parameters,
            secrets=secrets,
            topology=request.topology,
            source=request.content,
            mutable_parameters=request.mutable,
        )
        await _check_answer(node, driver, request, volume)
    except CsiError as failure:
        if request.filled_from and failure.code is Code.ABORTED:
            state.happened(ClaimEvent.FILL)
            await _watch_filling(node, uid, creation, failure.message)
        else:
            await _end_failed(node, uid, creation, failure)
        return None
    finally:
        slow.cancel()
    state.made(volume)
    ledger.made(uid, volume.size or request.size)
    if driver.lists_capacity:
        node.readings.want(driver.name)
    else:
        ledger.removed(uid)  # no GetCapacity result will ever include it
    return volume


async def _watch_filling(node: NodeContext, uid: str, creation: Creation, progress: str) -> None:
    """Tell now and then how far the filling is; give the volume up if its claim no longer waits here."""
    if not _is_here(node, creation.claim) and await read_waiting(node, creation.claim) is None:
        volumes = [v for v in await creation.driver.client.list_volumes() if claim_uid(v) == uid]
        if volumes:
            await _delete_unwanted(node, uid, creation, volumes)
        return
    now, text = node.clock.monotonic(), progress.partition(" is being filled: ")[2]
    if text and creation.report_filling(now, every=TELL_EVERY):
        node.events.normal(refer(CLAIMS, creation.claim), "Populating", text)


async def _report_if_slow(node: NodeContext, creation: Creation) -> None:
    """Emit an Event if a creation takes long.

    A fast creation emits none before the volume exists: each Event is one more write for the API server.
    """
    await node.clock.sleep(SLOW)
    if creation.report_slow():
        text = f'External provisioner is provisioning volume for claim "{creation.claim.key}"'
        node.events.normal(refer(CLAIMS, creation.claim), "Provisioning", text)


async def _check_answer(node: NodeContext, driver: DriverInfo, request: ClaimRequest, volume: CreatedVolume) -> None:
    """Check the created volume; delete one that is too small.

    Raises: CsiError that is not final.
    """
    if request.content is not None and volume.content is None:
        await node.deletions.delete_unused(driver, volume.id, "it is empty, a copy was asked for", copies=True)
        raise CsiError(Code.ABORTED, "the driver made an empty volume, though a copy was asked for")
    if not volume.size or volume.size >= request.size:
        return
    log.error("volume too small driver=%s volume=%s size=%d", driver.name, volume.id, volume.size)
    await node.deletions.delete_unused(driver, volume.id, "it is too small", copies=True)
    raise CsiError(Code.ABORTED, f"created volume capacity {volume.size} less than requested capacity {request.size}")


async def _end_failed(node: NodeContext, uid: str, creation: Creation, failure: CsiError) -> None:
    """Classify a failure of CreateVolume. Raises it where the claim waits for its back-off."""
    claim, storage_class, state = creation.claim, creation.storage_class, node.table.of(uid)
    count_failure(claim)
    if not failure.final:
        state.happened(ClaimEvent.OUTCOME_UNKNOWN)
        _report_failure(node, creation, failure)
        raise failure  # repeated until the outcome is known, even if the claim is deleted
    failures = state.count_failure(is_internal=failure.code is Code.INTERNAL)
    is_of_node = failures >= MOST_FAILURES and bool(creation.driver.default_pool)
    node.ledger.failed(uid, rejected=failure.exhausted or failure.infeasible or is_of_node)
    node.readings.want(creation.driver.name)
    if not _is_here(node, claim):
        state.happened(ClaimEvent.FAILED)
        node.ledger.forget(uid)
        return
    if failure.infeasible:
        prefix = "Volume provisioning failed with infeasible error. Retries will be delayed. "
        why = prefix + failed_text(storage_class.metadata.name, failure)
        state.reject_classes(creation.classes, why)
        await report(node, claim, why)
        return
    _report_failure(node, creation, failure)
    if is_of_node:
        why = f"node {node.scope.node} cannot make the volume: {failure.message}; rescheduling"
        state.reject(Hold(node.clock.monotonic(), why=why))
        return
    if not (failure.exhausted and creation.driver.topology):
        state.happened(ClaimEvent.FAILED)
        raise failure
    # The ledger had capacity, but somebody else used it. The next attempt uses a new GetCapacity result: the group is
    # rescheduled at the next check, or held until there is, or may be, more capacity than before.
    state.reject(Hold(node.clock.monotonic()))


def _report_failure(node: NodeContext, creation: Creation, reason: Exception) -> None:
    text = failed_text(creation.storage_class.metadata.name, reason)
    node.events.warning(refer(CLAIMS, creation.claim), REASON, text)


# PV and binding


async def _deliver(node: NodeContext, uid: str, creation: Creation, volume: CreatedVolume) -> None:
    """Create the PV and bind it, or delete the volume if its claim is gone.

    Idempotent. Raises: ApiError, UnavailableError; PreconditionError if the PV's name is taken.
    """
    claim = creation.claim if _is_here(node, creation.claim) else await read_waiting(node, creation.claim)
    if claim is None:
        await _delete_unwanted(node, uid, creation, [volume])
        return
    wanted = provisioning.volume_of_claim(
        creation.request, volume, claim, creation.storage_class, creation.driver, node.scope
    )
    try:
        created = await node.client.create(VOLUMES, wanted)
    except ApiAlreadyExistsError:
        created = await node.client.get(VOLUMES, creation.request.name)
        if created.spec.claim_ref is None or created.spec.claim_ref.uid != uid:
            raise PreconditionError(
                f"PersistentVolume {creation.request.name} exists and is not for claim {claim.key}: remove it"
            ) from None
        if not creation.driver.reaches(created):  # of another node, which was selected for the claim meanwhile
            await _delete_unwanted(node, uid, creation, [volume])
            return
    node.table.of(uid).happened(ClaimEvent.DELIVERED)
    count_success(claim, node.clock.monotonic() - creation.began)
    if creation.reported or not is_ephemeral(claim):  # an ephemeral claim's users see that it is bound
        text = f"Successfully provisioned volume {creation.request.name}"
        node.events.normal(refer(CLAIMS, claim), "ProvisioningSucceeded", text)
    await hand_over(node, claim, created)


async def hand_over(node: NodeContext, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
    """Bind the claim and its PV. Idempotent.

    After a restart the volume may be from before: all GetCapacity results then include it, and the claim's reservation
    would count it twice.

    Raises: ApiError, UnavailableError.
    """
    uid = claim.metadata.uid
    reserved = node.ledger.get(uid)
    if reserved is not None and reserved.stage in (Stage.OBSERVED, Stage.RESERVED):
        node.ledger.removed(uid)
    if not node.binds:
        return
    state = node.table.of(uid)
    state.happened(ClaimEvent.BIND)
    try:
        await bind(node.client, claim, volume)
    except (ApiNotFoundError, PreconditionError) as reason:
        # The claim was deleted meanwhile. The PV controller releases the volume, and it is reclaimed.
        log.info("volume not bound claim=%s volume=%s reason=%s", claim.key, volume.metadata.name, reason)
    except BaseException:
        state.happened(ClaimEvent.BIND_FAILED)
        raise
    node.table.bindings.made(uid, node.clock.monotonic())
    state.bound(node.clock.monotonic() + LOOK_EVERY)


def is_pending(node: NodeContext, claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim may be rescheduled: no volume, bound or not, and none under way."""
    uid = claim.metadata.uid
    reservation, state = node.ledger.get(uid), node.table.claims.get(uid)
    if reservation is not None and reservation.stage in (Stage.CREATING, Stage.CREATED):
        return False
    if state is not None and state.is_settled:
        return False
    has_volume = node.volumes.get(names.volume_name(uid)) is not None
    return not claim.spec.volume_name and not claim.metadata.deleting and not has_volume


async def read_claim(node: NodeContext, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
    """Return the same claim by a live read, None if it is gone."""
    now = await find(node.client, CLAIMS, claim.metadata.name, claim.metadata.namespace)
    return now if now is not None and now.metadata.uid == claim.metadata.uid else None


def _is_here(node: NodeContext, claim: PersistentVolumeClaim) -> bool:
    """Return whether the cache has the claim with this node, and it stays."""
    now = node.claims.get(claim.key)
    return now is not None and now.metadata.uid == claim.metadata.uid and not now.metadata.deleting


async def read_waiting(node: NodeContext, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
    """Return the claim if it still waits for this node, else None.

    A live read: the watch may be behind, and it shows a deleted claim and one with another node alike.
    """
    now = await read_claim(node, claim)
    if now is None or now.metadata.deleting or now.spec.volume_name:
        return None
    return now if node.scope.has_claim(now.metadata) else None


async def _delete_unwanted(node: NodeContext, uid: str, creation: Creation, volumes: Iterable[CreatedVolume]) -> None:
    """Delete the unwanted volumes of a claim, unless there is a PV, or a pod had them.

    A volume with a PV is reclaimed later. A PV of that name may belong to another node, where the claim got its volume.
    """
    created = await find(node.client, VOLUMES, creation.request.name)
    if created is None or not creation.driver.reaches(created):
        secrets = await read_secret(node.client, creation.request.secret)
        why = f"claim {creation.claim.key} no longer waits here"
        for volume in volumes:
            await node.deletions.delete_unused(creation.driver, volume.id, why, copies=True, secrets=secrets)
    node.table.of(uid).happened(ClaimEvent.UNWANTED)
    node.ledger.removed(uid)
    node.readings.want(creation.driver.name, freed=True)


# Metrics, named as external-provisioner's. As there, each failed attempt counts, and only successes have a duration
# (sig-storage-lib-external-provisioner, controller/metrics).


def count_success(claim: PersistentVolumeClaim, seconds: float) -> None:
    """Count a created volume with its PV. seconds: since this attempt began."""
    labels = _labels(claim)
    metrics.PROVISIONED.labels(*labels).inc()
    metrics.PROVISION_SECONDS.labels(*labels).observe(seconds)


def count_failure(claim: PersistentVolumeClaim) -> None:
    """Count a failed attempt to create a volume."""
    metrics.PROVISION_FAILED.labels(*_labels(claim)).inc()


def _labels(claim: PersistentVolumeClaim) -> tuple[str, str]:
    source = claim.spec.data_source
    return claim.spec.storage_class_name or "", source.kind if source is not None else ""


# Volumes of an earlier agent


@dataclass
class ExistingVolumes:
    """Finds volumes that exist for claims without a PV, with ListVolumes.

    An earlier agent ended between CreateVolume and the PV. GetCapacity results include such a volume, so its claim
    needs no more capacity. Used before a claim is rejected.
    """

    node: NodeContext
    _listed: dict[str, tuple[float, frozenset[str]]] = field(default_factory=dict)

    async def has(self, driver: str, uid: str) -> bool:
        """Return whether the driver has a volume for the claim of that uid.

        False if the driver does not name claims in its volumes, or does not answer. True is never an old answer.
        """
        found = self.node.drivers.get(driver)
        if found is None or not found.lists_volumes or not found.default_pool:
            return False
        now = self.node.clock.monotonic()
        listed, uids = self._listed.get(driver, (float("-inf"), frozenset()))
        if now < listed + PAUSE and uid not in uids:
            return False
        try:
            volumes = await found.client.list_volumes()
        except (CsiError, UnavailableError) as failure:
            log.warning("volumes not listed driver=%s error=%s", driver, failure)
            return False
        uids = frozenset(map(claim_uid, volumes)) - {""}
        self._listed[driver] = now, uids
        return uid in uids
