"""Leader election by a Lease (client-go tools/leaderelection).

The leader renews the Lease. The others watch it and take it over when it has not changed for its duration, measured on
their own clock, so clock differences do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tonnage.base.aio.clock import Clock, RealClock, rfc3339
from tonnage.base.errors import ApiAlreadyExistsError, ApiConflictError, ApiError, ApiNotFoundError, UnavailableError
from tonnage.kubernetes.api.core import Lease
from tonnage.kubernetes.api.kinds import LEASES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.object_write import patch_object

log = logging.getLogger(__name__)


class LeaderElection:
    """Holds or awaits the Lease namespace/name as identity. Times in seconds; a failed renewal is repeated sooner."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: float = 15.0,
        renew_every: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self.identity = identity
        self._client, self._namespace, self._name = client, namespace, name
        self._duration, self._renew_every, self._retry_every = duration, renew_every, renew_every * 0.4
        self._clock = clock or RealClock()
        self._seen: tuple[str, float] = ("", 0.0)  # resourceVersion, when we first saw it
        self._renewed = 0.0
        self._written: list[str] = []  # renewTimes of the last renewal that succeeded, and of later ones that may have

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to become leader, then run lead() until leadership is lost; repeat forever.

        lead() is cancelled when the Lease could not be renewed within its duration. On cancellation the Lease is
        released, so another replica need not wait for its end.
        """
        while True:
            while not await self._try():
                await self._clock.sleep(self._retry_every)
            log.info("leading lease=%s/%s identity=%s", self._namespace, self._name, self.identity)
            try:
                await self._lead(lead)
            except asyncio.CancelledError:
                await self._release()
                raise
            log.warning("leadership lost lease=%s/%s", self._namespace, self._name)

    async def continues(self) -> bool:
        """Return whether the Lease is as this process left it: else the API server may be in another, older state."""
        before = list(self._written)  # a renewal may end during the read
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except (ApiError, UnavailableError) as failure:
            log.warning("lease not read lease=%s error=%s", self._name, failure)
            return False
        return lease.spec.renew_time in {*before, *self._written}

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        work = asyncio.ensure_future(lead())
        pause = self._renew_every
        try:
            while not work.done():
                await asyncio.wait([work], timeout=pause)
                renewed = await self._renew()
                pause = self._renew_every if renewed else self._retry_every
                if not renewed and self._clock.monotonic() - self._renewed >= self._duration * 2 / 3:
                    return
            work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _renew(self) -> bool:
        """Renew the Lease; return whether we still hold it.

        A server that hangs must not delay the end of leadership.
        """
        try:
            async with asyncio.timeout(self._duration / 3):
                return await self._try()
        except TimeoutError:
            return False

    async def _try(self) -> bool:
        """Acquire or renew the Lease; return whether we hold it now."""
        try:
            held = await self._take()
        except (ApiConflictError, ApiAlreadyExistsError):
            return False
        except (ApiError, UnavailableError) as failure:
            log.debug("lease not reached lease=%s error=%s", self._name, failure)
            return False
        if held:
            self._renewed = self._clock.monotonic()
        return held

    async def _take(self) -> bool:
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except ApiNotFoundError:
            spec = self._spec(None)
            body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
            await self._client.create(LEASES, body, self._namespace)
            self._written = [spec["renewTime"]]
            return True
        version = lease.metadata.resource_version
        if version != self._seen[0]:
            self._seen = (version, self._clock.monotonic())
        if lease.spec.holder_identity not in (None, "", self.identity) and not self._expired(lease):
            return False
        spec = self._spec(lease)
        self._written.append(spec["renewTime"])
        lease = await patch_object(self._client, LEASES, lease, {"spec": spec})
        self._written = [spec["renewTime"]]
        self._seen = (lease.metadata.resource_version, self._clock.monotonic())
        return True

    def _expired(self, lease: Lease) -> bool:
        duration = lease.spec.lease_duration_seconds or self._duration
        return self._clock.monotonic() - self._seen[1] > duration

    def _spec(self, old: Lease | None) -> dict[str, Any]:
        now = rfc3339(self._clock.time(), micro=True)
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": now,
        }
        if old is None or old.spec.holder_identity != self.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = 0 if old is None else (old.spec.lease_transitions or 0) + 1
        return spec

    async def _release(self) -> None:
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
            if lease.spec.holder_identity == self.identity:
                spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
                await patch_object(self._client, LEASES, lease, {"spec": spec})
        except (ApiError, UnavailableError):
            log.debug("lease not released lease=%s", self._name)
