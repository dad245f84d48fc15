"""Pod garbage collector: deletes pods of nodes that are no more (Kubernetes' controller/podgc).

A node counts as gone when it has been for 40 s and a live read says so: a kubelet that registers again in time keeps
its pods. The kubelet that runs such a pod, if there is one, takes it down when its object is gone. Of a node with the
taint out-of-service that is not Ready, pods that are being deleted are deleted at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import NODES, PODS
from tonnage.kubernetes.api.meta import condition, to_builtins
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.indexes import PODS_BY_NODE, pods_by_node
from tonnage.kubernetes.client.informer import Informers

log = logging.getLogger(__name__)
QUARANTINE = 40.0
"""Seconds for which a node must be gone."""


class PodGarbageCollector(Reconciler[str]):
    """Deletes orphaned pods; a key is a node's name."""

    def __init__(self, client: Client, informers: Informers, *, clock: Clock) -> None:
        self._client, self._clock = client, clock
        nodes, pods = informers.of(NODES), pods_by_node(informers)
        self._nodes, self._pods = nodes.cache, pods.cache
        self._gone: dict[str, float] = {}
        super().__init__("pod_gc", workers=2)
        self.watch(nodes, _node_gone)
        self.watch(pods, self._pod_placed)

    async def reconcile(self, name: str) -> float | None:
        """Delete the pods of a node that is gone for long enough. Idempotent. Raises: ApiError."""
        if (node := self._nodes.get(name)) is not None and _is_off(node):
            for pod in list(self._pods.by(PODS_BY_NODE, name)):
                if pod.metadata.deleting:
                    await self._delete(pod, f"PodGC: node {name} is out of service")
        if node is not None or not (pods := self._pods.by(PODS_BY_NODE, name)):
            self._gone.pop(name, None)
            return None
        now = self._clock.monotonic()
        left = self._gone.setdefault(name, now) + QUARANTINE - now
        if left > 0:
            return left
        with suppress(ApiNotFoundError):
            await self._client.get(NODES, name)
            return QUARANTINE  # the watch is late
        for pod in list(pods):
            await self._delete(pod, "PodGC: node no longer exists")
        self._gone.pop(name, None)
        return None

    async def _delete(self, pod: Pod, why: str) -> None:
        log.info("pod is deleted pod=%s node=%s why=%s", pod.key, pod.spec.node_name, why)
        meta = pod.metadata
        with suppress(ApiNotFoundError, ApiConflictError):  # another one has it now
            if not pod.terminated:
                await self._client.patch(
                    PODS,
                    meta.name,
                    {"status": self._failed(pod, why)},
                    meta.namespace,
                    subresource="status",
                    uid=meta.uid,
                )
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)

    def _failed(self, pod: Pod, text: str) -> dict[str, object]:
        now = rfc3339(self._clock.time())
        mark = condition(pod.status.conditions, "DisruptionTarget", "True", "DeletionByPodGC", text, now=now)
        others = [c for c in pod.status.conditions if c.type != mark.type]
        return {"phase": "Failed", "conditions": [to_builtins(c) for c in (*others, mark)]}

    def _pod_placed(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Pods that get a node that is not there, or are being deleted on one that is out of service."""
        if new is None or not new.spec.node_name:
            return ()
        node, is_placed = self._nodes.get(new.spec.node_name), old is None or old.spec.node_name != new.spec.node_name
        is_due = is_placed if node is None else new.metadata.deleting and _is_off(node)
        return (new.spec.node_name,) if is_due else ()


def _node_gone(old: Node | None, new: Node | None) -> Iterable[str]:
    """Nodes that go, or are put out of service."""
    if new is None:
        return (old.metadata.name,) if old is not None else ()
    return (new.metadata.name,) if _is_off(new) and (old is None or not _is_off(old)) else ()


def _is_off(node: Node) -> bool:
    return node.is_out_of_service and not node.is_ready
