"""Namespace controller: empties deleted namespaces, then finalizes them (pkg/controller/namespace).

Pods are deleted first, because they may use the other objects; then everything else. When a live read finds nothing
more, the controller removes the finalizer `kubernetes`. Each deleted object queues its namespace again. After some
seconds the namespace's conditions say what blocks the deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from tonnage.base.aio.clock import Clock, RealClock, rfc3339
from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Namespace
from tonnage.kubernetes.api.kinds import ALL, EVENTS, NAMESPACES, PODS, Kind
from tonnage.kubernetes.api.meta import Condition, KubeObject, PartialObject, condition, to_builtins
from tonnage.kubernetes.client.client import Client, status_error
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request
from tonnage.provisioning.claims.timers import Waits

_TOGETHER = 0.05
"""Seconds within which several objects that go are one reason to look."""


class NamespaceController(Reconciler[str]):
    """Finishes Terminating namespaces. quiet: seconds before conditions say what blocks the deletion."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        *,
        kinds: Iterable[Kind[Any]] = ALL,
        clock: Clock | None = None,
        quiet: float = 3.0,
    ) -> None:
        self._client, self._clock, self._quiet = client, clock or RealClock(), quiet
        self._waits = Waits(self._clock)
        self._kinds = [PODS, *(k for k in kinds if k.namespaced and k is not PODS)]
        namespaces = informers.of(NAMESPACES)
        self._namespaces = namespaces.cache
        super().__init__("namespace", workers=4)
        self.watch(namespaces, self._changed)
        for kind in self._kinds:
            if kind is not EVENTS:  # they hold nothing up, and are many
                self.watch(informers.of(kind), self._content_gone)

    async def reconcile(self, name: str) -> float | None:
        """Delete the remaining objects of the namespace, or finalize it. Idempotent. Raises: ApiError."""
        namespace = self._namespaces.get(name)
        if namespace is None or not namespace.metadata.deleting:
            return None
        if names.NAMESPACE_FINALIZER not in namespace.spec.finalizers:
            return None
        left = await self._empty(name)
        if not left:
            await self._finalize(name)
            return None
        if wait := self._waits.left(namespace.metadata.uid, self._quiet):
            return wait
        await self._write_conditions(namespace, left)
        return None

    async def _empty(self, name: str) -> dict[str, list[KubeObject]]:
        """Ask for the deletion of everything; returns what is there still: pods alone, as long as there are any."""
        left: dict[str, list[KubeObject]] = {}
        for kind in self._kinds:
            found = await self._list(kind, name)
            if any(not obj.metadata.deleting for obj in found):
                options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
                await self._request("DELETE", kind.path(name), options)
                found = await self._list(kind, name)
            if found:
                left[kind.plural] = found
            if kind is PODS and left:
                break
        return left

    async def _list(self, kind: Kind[Any], namespace: str) -> list[KubeObject]:
        """Those that cannot be read too: they are deleted as all others are."""
        listing = await self._client.list(kind, namespace, tolerant=True)
        return [*listing.items, *(PartialObject(metadata=found.metadata) for found in listing.unreadable)]

    async def _finalize(self, name: str) -> None:
        """PUT namespaces/NAME/finalize: the object as it is, without our finalizer."""
        with suppress(ApiNotFoundError):
            whole = msgspec.json.decode(await self._client.read(NAMESPACES.path("", name)))
            finalizers = whole.get("spec", {}).get("finalizers", [])
            whole["spec"] = {"finalizers": [f for f in finalizers if f != names.NAMESPACE_FINALIZER]}
            await self._request("PUT", NAMESPACES.path("", name, "finalize"), whole)

    async def _request(self, method: str, path: str, body: dict[str, Any]) -> None:
        """What only this controller asks for. Raises: ApiError."""
        answer = await self._client.transport.request(Request(method, path, body=msgspec.json.encode(body)))
        if answer.status >= 300:
            raise status_error(answer.body, answer.status)

    async def _write_conditions(self, namespace: Namespace, left: dict[str, list[KubeObject]]) -> None:
        counts = ", ".join(f"{plural}. has {len(found)} resource instances" for plural, found in left.items())
        holders = Counter(f for found in left.values() for o in found for f in o.metadata.finalizers)
        finalizers = ", ".join(f"{f} in {n} resource instances" for f, n in sorted(holders.items()))
        remaining = f"Some resources are remaining: {counts}"
        held = f"Some content in the namespace has finalizers remaining: {finalizers}" if finalizers else ""
        if not self._waits.news(namespace.metadata.uid, remaining + held):
            return
        conditions = [self._condition("NamespaceContentRemaining", "SomeResourcesRemain", remaining)]
        if held:
            conditions.append(self._condition("NamespaceFinalizersRemaining", "SomeFinalizersRemain", held))
        with suppress(ApiNotFoundError):
            status = {"status": {"conditions": [to_builtins(c) for c in conditions]}}
            await self._client.patch(NAMESPACES, namespace.metadata.name, status, subresource="status")

    def _condition(self, type_: str, reason: str, message: str) -> Condition:
        return condition((), type_, "True", reason, message, now=rfc3339(self._clock.time()))

    def _changed(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        if new is None:
            if old is not None:
                self._waits.over(old.metadata.uid)
            return ()
        return (new.metadata.name,) if new.metadata.deleting else ()

    def _content_gone(self, old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
        if new is None and old is not None:
            namespace = self._namespaces.get(old.metadata.namespace)
            if namespace is not None and namespace.metadata.deleting:
                self.enqueue(namespace.metadata.name, after=_TOGETHER)
        return ()
