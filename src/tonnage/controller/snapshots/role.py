"""When the snapshot controller of an installation works: where the kinds are served, and no other has the role.

Upstream's controller may run in the same cluster: with leader election, it renews a Lease that this looks at. Its
absence proves nothing, since upstream's election is optional; so the role is off unless asked for. Two controllers at
once do no harm: each step is idempotent by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tonnage.base.aio.clock import time_of
from tonnage.base.errors import ApiError, TonnageError
from tonnage.controller.config import LoopContext
from tonnage.controller.snapshots.controller import SnapshotController
from tonnage.controller.snapshots.group_controller import GroupSnapshotController
from tonnage.kubernetes.api.core import Lease
from tonnage.kubernetes.api.kinds import LEASES, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.kubernetes.client.leader_process import LeaderLoop
from tonnage.provisioning.claims.bind import find

log = logging.getLogger(__name__)
LEASE, LEASE_NAMESPACE = "snapshot-controller-leader", "kube-system"
LOOK_EVERY = 60.0
"""Seconds between two looks, and how old a renewal is at most."""
_ABSENT = (403, 404)


class SnapshotLoops:
    """The loops of single and of group snapshots."""

    def __init__(self, context: LoopContext) -> None:
        self.all = SnapshotController(context), GroupSnapshotController(context)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for loop in self.all:
                tasks.create_task(loop.run())


class SnapshotRole:
    """Runs the snapshot controller while it is needed. make: of the controller, once its kinds are served."""

    def __init__(
        self,
        context: LoopContext,
        *,
        make: Callable[[LoopContext], LeaderLoop] = SnapshotLoops,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._context, self._client, self._clock = context, context.client, context.clock
        self._make, self._look_every = make, look_every
        self._loop: LeaderLoop | None = None
        self._version = ""  # of the Lease, when it was last looked at
        self._said = ""

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            if not (why := await self._obstacle()):
                await self._work()
            elif why != self._said:
                self._said = why
                log.warning("snapshot controller is off: %s; looking again every %.0f s", why, self._look_every)
            await asyncio.sleep(self._look_every)

    async def _work(self) -> None:
        """Run the controller until another one takes the role."""
        if self._loop is None:  # late: its watches would ask again and again for kinds that are not served
            self._loop = self._make(self._context)
        self._said = ""
        log.info("snapshot controller works")
        work = asyncio.ensure_future(self._loop.run())
        try:
            while not work.done() and not await self._is_led():
                await asyncio.wait([work], timeout=self._look_every)
            if work.done():
                work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _obstacle(self) -> str:
        """Why the controller is not to work now, "" for nothing."""
        try:
            if await self._is_led():
                return f"another one has the Lease {LEASE_NAMESPACE}/{LEASE}; remove that one, or this option"
            await self._client.revision(SNAPSHOTS)
            await self._client.revision(SNAPSHOT_CONTENTS)
        except ApiError as error:
            if error.code in _ABSENT:
                return f"snapshots cannot be listed: {error}; apply `tonnage manifests --snapshot-crds`"
            return str(error)
        except TonnageError as error:
            return str(error)
        return ""

    async def _is_led(self) -> bool:
        """Whether another controller renews the Lease: by its version, and at first by its clock."""
        try:
            lease = await find(self._client, LEASES, LEASE, LEASE_NAMESPACE)
        except TonnageError as error:
            log.debug("lease not read lease=%s error=%s", LEASE, error)
            return False
        if lease is None or not lease.spec.holder_identity:
            return False
        before, self._version = self._version, lease.metadata.resource_version
        return before != self._version if before else self._is_recent(lease)

    def _is_recent(self, lease: Lease) -> bool:
        renewed = time_of(lease.spec.renew_time)
        return renewed is not None and abs(self._clock.time() - renewed) < self._look_every
