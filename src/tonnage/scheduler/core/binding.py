"""PreBind and Bind: writes a pod's claims and PVs, waits until they are bound, then binds the pod.

Source: k/k volumebinding/binder.go (bindAPIUpdate, checkBindings), with its error texts. There is no polling: an event
of a claim or PV causes the next check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiError, PreconditionError, TonnageError, UnavailableError
from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.provisioning.claims.bind import claim_reference, selection
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.framework.plugin import SchedulingDecision, Unbound
from tonnage.scheduler.framework.pod_info import claim_uses
from tonnage.scheduler.framework.storage_objects import StorageObjects, reach_of
from tonnage.scheduler.plugins.messages import not_there

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
BOUND, AWAITED, BACK = "bound", "awaited", "back"
POD_GONE = "pod does not exist any more"
_RETRY_SECONDS = (0.02, 0.2, 1.0)
_BIND_SECONDS = 600.0


class RescheduledError(PreconditionError):
    """The node's agent rescheduled a claim: insufficient storage there."""


def claim_patch(unbound: Unbound, node: str, pod: Pod) -> dict[str, Any]:
    """Return the patch that sends a claim of the pod to the node."""
    is_single = [use.ephemeral for use in claim_uses(pod)] == [True]
    return selection(node, unbound.storage_class, single=unbound.claim.metadata.uid if is_single else "")


class Binding:
    """Decision of a pod whose volumes are being bound.

    sent: claim uid -> resourceVersion that our write returned; older versions in a cache are ignored.
    """

    def __init__(self, pod: Pod, decision: SchedulingDecision, labels: Mapping[str, str]) -> None:
        self.pod = pod
        self.node = decision.node
        self.plan = decision.plan
        self.sent: dict[str, int] = {}
        self._labels = labels

    def claim_keys(self) -> list[str]:
        """Keys of the claims to wait for."""
        return [claim.key for claim, _ in self.plan.found] + [made.claim.key for made in self.plan.made]

    def look(self, objects: StorageObjects) -> bool:
        """Return whether all volumes are bound.

        A rescheduled claim counts when its whole group is decided: the claims are rescheduled one after the other, and
        a decision in between would be pinned by those that still have the node.

        Raises: PreconditionError, with Kubernetes' text, when it cannot succeed.
        """
        found = [self._found(objects, claim, volume) for claim, volume in self.plan.found]
        made = [self._made(objects, made.claim) for made in self.plan.made]
        if BACK in made and AWAITED not in made:
            claim = self.plan.made[made.index(BACK)].claim
            raise RescheduledError(f'selectedNode annotation reset for PVC "{claim.metadata.name}"')
        return all(found) and all(fate == BOUND for fate in made)

    def _claim(self, objects: StorageObjects, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        seen = objects.claims.get(claim.key)
        if seen is None or seen.metadata.uid != claim.metadata.uid:
            raise PreconditionError(f'persistentvolumeclaim "{claim.metadata.name}" not found')
        return seen

    def _found(self, objects: StorageObjects, claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
        seen, current = self._claim(objects, claim), objects.volumes.get(volume.metadata.name)
        name = volume.metadata.name
        if current is None:
            raise PreconditionError(f'persistentvolume "{name}" not found')
        if current.metadata.version < self.sent.get(volume.metadata.uid, 0):
            return False
        self._check_reach(current)
        if current.spec.claim_ref is None or current.spec.claim_ref.uid != claim.metadata.uid:
            raise PreconditionError(f'ClaimRef got reset for pv "{name}"')
        return matching.is_bound(seen)

    def _made(self, objects: StorageObjects, claim: PersistentVolumeClaim) -> str:
        """Return the state of a claim with selected node: BOUND, AWAITED or BACK."""
        seen = self._claim(objects, claim)
        if seen.metadata.version < self.sent.get(claim.metadata.uid, 0):
            return AWAITED
        if not matching.is_bound(seen):
            selected = seen.metadata.annotations.get(names.SELECTED_NODE)
            if selected not in (None, self.node):
                raise PreconditionError(f'provisioning failed for PVC "{claim.metadata.name}"')
            return BACK if selected is None else AWAITED
        volume = objects.volumes.get(seen.spec.volume_name)
        if volume is None:  # the claim's watch was faster than the PV's
            return AWAITED
        self._check_reach(volume)
        return BOUND

    def _check_reach(self, volume: PersistentVolume) -> None:
        if not reach_of(volume).matches(self._labels, self.node):
            name = volume.metadata.name
            raise PreconditionError(
                f'pv "{name}" node affinity doesn\'t match node "{self.node}": no matching NodeSelectorTerms'
            )


class BindingWaits:
    """Bindings that wait for events of claims and PVs."""

    def __init__(self, objects: StorageObjects) -> None:
        self._objects = objects
        self._by_claim: dict[str, list[tuple[Binding, asyncio.Future[None]]]] = {}
        self._by_pod: dict[str, asyncio.Future[None]] = {}

    async def wait(self, binding: Binding) -> None:
        """Wait until all volumes are bound.

        Raises: PreconditionError (see Binding.look), also when the pod is gone.
        """
        if binding.look(self._objects):
            return
        future = asyncio.get_running_loop().create_future()
        uid, keys = binding.pod.metadata.uid, binding.claim_keys()
        self._by_pod[uid] = future
        for key in keys:
            self._by_claim.setdefault(key, []).append((binding, future))
        try:
            await future
        finally:
            del self._by_pod[uid]
            for key in keys:
                left = [wait for wait in self._by_claim[key] if wait[1] is not future]
                if left:
                    self._by_claim[key] = left
                else:
                    del self._by_claim[key]

    def changed(self, claim: str) -> None:
        """Handle a changed or deleted claim, or PV of the claim."""
        for binding, future in self._by_claim.get(claim, ()):
            if future.done():
                continue
            try:
                if binding.look(self._objects):
                    future.set_result(None)
            except PreconditionError as failure:
                future.set_exception(failure)

    def pod_gone(self, uid: str) -> None:
        """Handle a deleted pod."""
        future = self._by_pod.get(uid)
        if future is not None and not future.done():
            future.set_exception(PreconditionError(POD_GONE))


class VolumeBinder:
    """PreBind plugin: binds the volumes of a decision.

    is_assumed(uid): whether a pod's decision still holds.
    """

    patience = 3.0
    """Seconds for which a volume may be missing without a known provisioner, before an Event says so."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        clock: Clock,
        cluster: Cluster,
        is_assumed: Callable[[str], bool],
    ) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._cluster, self._is_assumed = cluster, is_assumed
        self.waits = BindingWaits(cluster.objects)

    async def pre_bind(self, pod: Pod, decision: SchedulingDecision) -> None:
        """Write the decision into claims and PVs, and wait until all are bound. Raises: TonnageError."""
        if not (decision.plan.found or decision.plan.made):
            return
        columns = self._cluster.columns
        binding = Binding(pod, decision, columns.labels[columns.slots[decision.node]])
        prefix = 'running PreBind plugin "VolumeBinding": binding volumes: '
        try:
            async with asyncio.timeout(_BIND_SECONDS):
                await self._send(binding)
                if not self._is_assumed(pod.metadata.uid):
                    raise PreconditionError(POD_GONE)
                await self._wait(binding)
        except TimeoutError:
            raise TonnageError(prefix + "context deadline exceeded") from None
        except TonnageError as failure:
            kind = RescheduledError if isinstance(failure, RescheduledError) else TonnageError
            raise kind(prefix + str(failure)) from failure

    async def _wait(self, binding: Binding) -> None:
        """Wait for the volumes.

        If no provisioner is known, the pod's condition says so after a while, and it waits on: a provisioner need not
        be a CSI driver.
        """
        absent = [u for u in binding.plan.made if self._is_absent(u.storage_class.provisioner)]
        if not absent:
            await self.waits.wait(binding)
            return
        timer = asyncio.get_running_loop().call_later(self.patience, self._tell_absent, binding, absent)
        try:
            await self.waits.wait(binding)
        finally:
            timer.cancel()

    def _is_absent(self, provisioner: str) -> bool:
        return self._cluster.objects.drivers.get(provisioner) is None and not self._cluster.is_registered(provisioner)

    def _tell_absent(self, binding: Binding, absent: list[Unbound]) -> None:
        for unbound in absent:
            claim, storage_class = unbound.claim.metadata.name, unbound.storage_class
            text = (
                f'waiting for provisioner "{storage_class.provisioner}" of StorageClass "{storage_class.metadata.name}"'
                f" to make the volume of claim {claim}: {not_there(storage_class.provisioner)}"
            )
            self._events.warning(refer(PODS, binding.pod), "WaitingForProvisioner", text)

    async def _send(self, binding: Binding) -> None:
        """Write the decision into PVs and claims, in order; the first failure ends it."""
        for claim, volume in binding.plan.found:
            if patch := claim_reference(volume, claim):
                meta = volume.metadata
                wrote = await self._client.patch(VOLUMES, meta.name, patch, resource_version=meta.resource_version)
                binding.sent[meta.uid] = wrote.metadata.version
        for made in binding.plan.made:
            meta = made.claim.metadata
            if meta.annotations.get(names.SELECTED_NODE) == binding.node:
                continue  # the API server has the decision, by an earlier attempt
            patch = claim_patch(made, binding.node, binding.pod)
            sent = await self._insist(
                partial(self._client.patch, CLAIMS, meta.name, patch, meta.namespace, uid=meta.uid)
            )
            binding.sent[meta.uid] = sent.metadata.version
            self._cluster.published.confirm(meta.uid, binding.sent[meta.uid])
            if (seen := self._cluster.objects.claims.get(made.claim.key)) is not None and seen.metadata.uid == meta.uid:
                self._cluster.published.follow(seen, made.storage_class.key)  # an event that came during the write

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent request while the server fails.

        Stopping between two claims of a pod would pin it to the node by the first, without capacity reserved for the
        second.
        """
        for delay in _RETRY_SECONDS:
            try:
                return await call()
            except UnavailableError as failure:
                log.debug("request repeated in=%.2fs error=%s", delay, failure)
            except ApiError as failure:
                if failure.code < 500 and failure.code != 429:
                    raise
                delay = failure.retry_after or delay
            await self._clock.sleep(delay)
        return await call()


async def bind(client: Client, pod: Pod, node: str) -> None:
    """Bind a pod to its node. Raises: ApiError."""
    meta = pod.metadata
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.post(PODS.path(meta.namespace, meta.name, "binding"), body)
