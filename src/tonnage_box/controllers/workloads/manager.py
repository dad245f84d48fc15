"""Workload controllers, each started when the first object of its kind exists: most boxes have none.

A kind is a row in _WORKLOADS; its module is imported on first use.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import supervise
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    JOBS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Kind,
)
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.context import ControllerContext

_JOB_ROW = (JOBS, "job", "JobController")
_WORKLOADS: tuple[tuple[Kind[Any], str, str], ...] = (
    (DEPLOYMENTS, "deployment", "DeploymentController"),
    (REPLICA_SETS, "replicaset", "ReplicaSetController"),
    (STATEFUL_SETS, "statefulset", "StatefulSetController"),
    (DAEMON_SETS, "daemonset", "DaemonSetController"),
    _JOB_ROW,
    (CRON_JOBS, "cronjob", "CronJobController"),
    (DISRUPTION_BUDGETS, "disruption", "DisruptionController"),
)
Recorders = Callable[[str], EventRecorder]
"""component -> what records Events in its name, running."""


class Workloads:
    """Runs a controller for every kind of workload that has been seen."""

    def __init__(
        self, client: Client, informers: Informers, recorders: Recorders, *, clock: Clock | None = None
    ) -> None:
        self._client, self._informers, self._recorders = client, informers, recorders
        self._clock = clock or RealClock()
        self._due: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._seen: set[str] = set()
        self._made: list[tuple[str, Any]] = []
        for kind, module, name in _WORKLOADS:
            informers.of(kind).cache.on_change(partial(self._need, module, name))
        informers.of(PODS).cache.on_change(self._pod_seen)

    def _pod_seen(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """A pod with a Job's finalizer needs the Jobs' controller to go, though no Job may be there any more."""
        if new is not None and names.JOB_TRACKING in new.metadata.finalizers:
            self._need(*_JOB_ROW[1:])

    def _need(self, module: str, name: str, *_: KubeObject | None) -> None:
        if module not in self._seen:
            self._seen.add(module)
            self._due.put_nowait((module, name))

    async def run(self) -> None:
        """Work until cancelled. May be called again afterwards."""
        async with asyncio.TaskGroup() as running:
            for name, controller in self._made:
                running.create_task(supervise(name, controller.run))
            while True:
                module, name = await self._due.get()
                made = getattr(importlib.import_module(f"tonnage_box.controllers.workloads.{module}"), name)
                events = self._recorders(f"{module}-controller")
                controller = made(ControllerContext(self._client, self._informers, events, self._clock))
                self._made.append((module, controller))
                running.create_task(supervise(module, controller.run))
