"""Kubelet of one node: composes plugins, volumes, containers and the Node object, and runs them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import supervise
from tonnage.base.errors import NotFoundError, TonnageError
from tonnage.kubernetes.api.certificate import ClusterTrustBundle, PodCertificateRequest
from tonnage.kubernetes.api.core import Node, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import (
    CLAIMS,
    CSI_DRIVERS,
    NODES,
    POD_CERTIFICATE_REQUESTS,
    PODS,
    TRUST_BUNDLES,
)
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.containers.runtime import Runtime
from tonnage_box.kubelet.node_lease import RENEW_EVERY, NodeLease
from tonnage_box.kubelet.node_status import NodeObject
from tonnage_box.kubelet.pods.worker import ANY_DRIVER, KubeletParts, PodWorkers
from tonnage_box.kubelet.streaming.logs import PodLogs
from tonnage_box.kubelet.volumes.attachments import topic
from tonnage_box.kubelet.volumes.builtin_volumes import BUNDLES, follows_bundles
from tonnage_box.kubelet.volumes.csi_node_writer import NodeInfoWriter
from tonnage_box.kubelet.volumes.expansion import VolumeExpansion
from tonnage_box.kubelet.volumes.plugins import Plugins, RegisteredDrivers
from tonnage_box.kubelet.volumes.pod_certificates import topic as request_topic
from tonnage_box.kubelet.volumes.projected_schedule import ProjectedSchedule
from tonnage_box.kubelet.volumes.sources import NodeFields, ObjectSources
from tonnage_box.kubelet.volumes.volumes import VolumeManager

if TYPE_CHECKING:
    from tonnage_box.kubelet.stats.kubelet_api import KubeletApi
    from tonnage_box.kubelet.streaming.pod_streams import PodStreams

log = logging.getLogger(__name__)
STOP_GRACE = 2.0
"""Seconds that containers get between SIGTERM and SIGKILL when the kubelet stops."""


class Kubelet:
    """One node's kubelet. informers: shared with others of the process, or its own."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        node: NodeFields,
        paths: Paths,
        *,
        runtime: Runtime,
        clock: Clock,
    ) -> None:
        self.node_name, self.paths, self.runtime = node.name, paths, runtime
        self.drivers = RegisteredDrivers()
        self.ready = asyncio.Event()
        """Set when Node and CSINode are there and pods are watched."""
        self._informers = informers
        self._pods = informers.of(PODS, fields=f"spec.nodeName={node.name}")
        self._csi_drivers, self._nodes = informers.of(CSI_DRIVERS), informers.of(NODES)
        self._node = NodeObject(client, events, clock, node, runtime=runtime.name, root=paths.root)
        self._lease, self._clock = NodeLease(client, clock, node.name), clock
        self._writer = NodeInfoWriter(client, node.name)
        self.plugins = Plugins(self.paths.registry, self.drivers, self._writer)
        sources = ObjectSources(client, node)
        self.volumes = VolumeManager(
            client,
            self.paths,
            self.drivers,
            sources,
            csi_driver=self._csi_drivers.cache.get,
            labels=self._node_labels,
            prepare=self.runtime.prepare,
        )
        self.volumes.files.images = self.runtime.images
        self.projected = ProjectedSchedule(clock, self.volumes.files.mount)
        self.volumes.files.on_written, self.volumes.release = self.projected.put, self._release
        self.volumes.files.certificates.warn = lambda pod, reason, text: events.warning(refer(PODS, pod), reason, text)
        self.expansion = self._growing_volumes(client, events)
        parts = KubeletParts(client, events, clock, self.paths, self.runtime, self.volumes, sources, self._own_node)
        self.workers = PodWorkers(parts, self._pods)
        self.logs = PodLogs(parts, self.workers)
        """Answers `kubectl logs` for this node's pods; LogRouter joins those of several nodes."""
        self._parts = parts
        self._api: KubeletApi | None = None
        self._swept: set[str] = set()
        self._sweeps: asyncio.Queue[str] = asyncio.Queue()
        self.drivers.on_change = self._driver_changed
        self.volumes.csi.on_left = self.workers.wake
        informers.of(CLAIMS).cache.on_change(self._claim_changed)
        self._nodes.cache.on_change(self._node_changed)
        informers.of(POD_CERTIFICATE_REQUESTS).cache.on_change(self._request_changed)
        informers.of(TRUST_BUNDLES).cache.on_change(self._bundle_changed)

    def _growing_volumes(self, client: Client, events: EventRecorder) -> VolumeExpansion:
        """What grows volumes when they are mounted, and while they are."""
        made = VolumeExpansion(
            client,
            events,
            self._clock,
            mounts=self.volumes.csi,
            pods=self._pods.cache,
            claims=self._informers.of(CLAIMS).cache,
            find_mounted=self.volumes.find_growing,
        )
        self.volumes.expand, self.volumes.on_mounted = made.expand_mounting, made.claim_mounted
        return made

    async def answer(self, path: str) -> tuple[str, bytes]:
        """Content type and content of a path below nodes/proxy. Raises: ApiError."""
        from tonnage_box.kubelet.stats.kubelet_api import KubeletApi

        if self._api is None:
            self._api = KubeletApi(self.node_name, self.paths, self.drivers, self.volumes)
        return await self._api.answer(path, self.workers.pods())

    def _own_node(self) -> Node | None:
        return self._nodes.cache.get(self.node_name)

    def _node_labels(self) -> Mapping[str, str]:
        node = self._own_node()
        return node.metadata.labels if node is not None else {}

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None:
            self.workers.wake(f"claim {new.key}")
            self.expansion.claim_changed(old, new)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None or new.metadata.name != self.node_name:
            return
        before = old.status.volumes_attached if old is not None else ()
        for volume in new.status.volumes_attached:
            if volume not in before:
                self.workers.wake(topic(volume.get("name", "")))

    def _request_changed(self, old: PodCertificateRequest | None, new: PodCertificateRequest | None) -> None:
        request = new or old
        if request is not None and request.spec.node_name == self.node_name:
            self.workers.wake(request_topic(request.key))
            self.projected.hasten(lambda pod, _: pod.metadata.uid == request.spec.pod_uid)

    def _bundle_changed(self, _old: ClusterTrustBundle | None, _new: ClusterTrustBundle | None) -> None:
        self.workers.wake(BUNDLES)
        self.projected.hasten(lambda _, volume: follows_bundles(volume))

    async def _release(self, uid: str) -> None:
        """Stop writing a pod's projected volumes."""
        await self.projected.forget(uid)
        self.volumes.files.certificates.forget(uid)

    def _driver_changed(self, name: str) -> None:
        if self.drivers.find(name) is None:
            return
        self.workers.wake(f"driver {name}")
        self.workers.wake(ANY_DRIVER)
        if name not in self._swept:
            self._swept.add(name)
            self._sweeps.put_nowait(name)

    async def run(self) -> None:
        """Work until cancelled; then stop() takes the containers down, or they go on without us."""
        for folder in (self.paths.root, self.paths.pods, self.paths.registry, self.paths.plugins, self.paths.logs):
            os.makedirs(folder, mode=0o750, exist_ok=True)
        node = await self._node.register()
        await self._writer.create_csinode(node)
        self._informers.start()
        self.workers.recover()
        self.volumes.attachments.recover(node, self.volumes.csi.attached())
        for informer in (self._pods, self._csi_drivers, self._nodes):
            await informer.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("plugins", self.plugins.run))
            tasks.create_task(self.workers.controller.run())
            tasks.create_task(self.expansion.run())
            tasks.create_task(self._node.beat())
            tasks.create_task(self._node.watch_disk())
            tasks.create_task(self._renew())
            tasks.create_task(self.volumes.attachments.run())
            tasks.create_task(self._sweep())
            tasks.create_task(supervise("projected volumes", self.projected.run))
            self.ready.set()

    async def _renew(self) -> None:
        """Renew the lease, and say that the node is Ready when another said it is not, until cancelled."""
        while True:
            node: Node | None = self._nodes.cache.get(self.node_name)
            if node is not None and await self._lease.renew_safely(node):
                await self._node.repair(node)
            await self._clock.sleep(RENEW_EVERY)

    async def _sweep(self) -> None:
        """Once a driver is there: unstage what earlier pods left staged, again and again until all is."""
        waits = Backoff(initial=0.5, maximum=120.0)
        while True:
            name = await self._sweeps.get()
            try:
                await self.volumes.csi.sweep(name)
                waits.forget(name)
            except NotFoundError:  # the driver went meanwhile: swept when it is back
                self._swept.discard(name)
            except TonnageError as failure:
                wait = waits.next(name)
                log.warning("staged volumes are left for now driver=%s again_in=%.1f error=%s", name, wait, failure)
                asyncio.get_running_loop().call_later(wait, self._sweeps.put_nowait, name)

    @cached_property
    def streams(self) -> PodStreams:
        """Serves exec and attach for this node's pods."""
        from tonnage_box.kubelet.streaming.pod_streams import PodStreams

        return PodStreams(self._parts, self.workers)

    async def _close_streams(self) -> None:
        if "streams" in self.__dict__:
            await self.streams.close()

    async def stop(self, *, grace: float = STOP_GRACE) -> None:
        """End all containers and take down all mounts; objects and data stay. After run() was cancelled."""
        await self._close_streams()
        await self.workers.stop(grace=grace)
        await self.runtime.close()
        self.plugins.close()

    async def close(self) -> None:
        """Stop without ending anything: containers and mounts stay for the next kubelet. Sessions end."""
        await self._close_streams()
        await self.workers.evictions.close()
        await self.workers.prober.close()
        await self.runtime.close()
        self.plugins.close()
