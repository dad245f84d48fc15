"""The loops for drivers whose volumes are attached, as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tonnage.base.aio.tasks import supervise
from tonnage.controller.attach.attacher import Attacher
from tonnage.controller.attach.capacity import SharedCapacity
from tonnage.controller.attach.comparison import AttachmentComparison
from tonnage.controller.attach.drivers import AttachEndpoint, AttachingDrivers
from tonnage.controller.config import LoopContext
from tonnage.kubernetes.client.leader_process import LeaderLoop


class AttachLoops:
    """Attaches volumes and publishes shared capacity for the drivers behind endpoints."""

    def __init__(self, context: LoopContext, endpoints: Sequence[AttachEndpoint]) -> None:
        drivers = AttachingDrivers(endpoints, context.clock)
        attacher = Attacher(context, drivers)
        comparison = AttachmentComparison(attacher, drivers, context.clock)
        self._loops: dict[str, LeaderLoop] = {
            "attaching drivers": drivers,
            "attacher": attacher,
            "volume protector": attacher.protector,
            "attachment comparison": comparison,
            "shared capacity": SharedCapacity(context, drivers),
        }

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, loop in self._loops.items():
                tasks.create_task(supervise(name, loop.run))
