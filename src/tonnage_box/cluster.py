"""The box: a whole cluster in one process. It composes the parts and holds no logic of theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from socket import gethostname
from urllib.parse import urlsplit

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.errors import ApiError, BusyError, TonnageError
from tonnage.base.observe.process import keep_trimmed, settle
from tonnage.controller.attach.drivers import AttachEndpoint
from tonnage.controller.attach.loops import AttachLoops
from tonnage.controller.config import ControllerConfig, LoopContext
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import NAMESPACES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.scheduler.scheduler import Scheduler
from tonnage_box import bootstrap
from tonnage_box.apiserver.server import auth
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.cleanup import clean, remove_unused
from tonnage_box.control_plane import certificate_loops, control_plane
from tonnage_box.controllers.cluster_role_aggregation import ClusterRoleAggregator
from tonnage_box.controllers.root_certificate import RootCertificatePublisher
from tonnage_box.data_dir import DataFolder, missing, remove_empty
from tonnage_box.kubelet.streaming.logs import LogRouter
from tonnage_box.kubelet.streaming.router import StreamRouter
from tonnage_box.node import BoxNode
from tonnage_box.plan import BoxPlan

log = logging.getLogger(__name__)
Progress = Callable[[str, str], None]
_STOP_SECONDS = 4.0
USUAL_PORT = 6443
_EVERYWHERE = {"0.0.0.0": "0.0.0.0", "::": "[::]"}
"""Wildcard addresses to listen on -> the address to connect to, as in a URL."""


@dataclass(frozen=True)
class BoxOptions:
    """How a box is started this time; its settings are in the plan.

    host, port: where the API server listens; port 0: any free one; None: the one of before, at first 6443, and a free
    one while that is taken. kubeconfig: a second path to write it to, for a user with the id kubeconfig_owner (-1:
    ours). recover: where the database is lost or damaged, begin with an empty cluster; volumes stay and are orphans.
    """

    host: str = "127.0.0.1"
    port: int | None = 0
    kubeconfig: Path | None = None
    kubeconfig_owner: int = -1
    recover: bool = False


class Box:
    """A cluster in one process. Call start(), then stop().

    progress(what, detail) reports each part that is ready; waiting(for what) reports why a slow start waits.
    """

    usual_port = USUAL_PORT
    """Port of the API server of a new cluster, if none is asked for."""
    report_waits_after = 5.0
    """Seconds between two reports of what a start waits for."""

    def __init__(
        self,
        data: DataFolder,
        plan: BoxPlan,
        options: BoxOptions | None = None,
        *,
        progress: Progress = lambda what, detail: None,
        waiting: Callable[[str], None] = lambda what: None,
        clock: Clock | None = None,
    ) -> None:
        self.data, self.plan = data, plan
        self._options = options = options or BoxOptions()
        self.kubeconfig = options.kubeconfig or data.kubeconfig
        self.nodes: dict[str, BoxNode] = {}
        self.client: Client
        self._logs: LogRouter
        self._streams: StreamRouter
        self._progress, self._waiting = progress, waiting
        self._clock = clock or RealClock()
        self._tasks = Background("box")
        self._server: ApiServer | None = None
        self._informers: Informers | None = None
        self._address: tuple[str, int] | None = None  # of the API server, for programs in containers
        self._is_up = False
        self._is_used = False  # a start that failed: whether volumes were made before
        self._new_pools: dict[Path, list[Path]] = {}  # folders of pools that were not there -> those with their parents

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return self._server.url if self._server else ""

    async def start(self) -> None:
        """Bring everything up; returns when all nodes are ready and have published their capacity.

        Raises: InvalidError, BusyError (data folder, port), UnavailableError (the database is lost or damaged),
        HostError. After a kill the containers that still run are adopted. A database that is rejected leaves the folder
        as it was.
        """
        self.data.open(self.plan.settings)
        self._new_pools = {where: made for where in self._elsewhere() if (made := missing(where))}
        watching = self._tasks.start(self._report_waits(), "start")
        await self._start_server()
        await self._start_controllers()
        await self._start_nodes()
        watching.cancel()
        self._is_up = True
        settle()
        self._tasks.start(keep_trimmed(), "memory")

    async def _report_waits(self) -> None:
        """Report what start() waits for, once and on each change."""
        reported = ""
        while True:
            await asyncio.sleep(self.report_waits_after)
            what = "; ".join(self._waits_for())
            if what and what != reported:
                log.warning("start is waiting for: %s", what)
                self._waiting(what)
                reported = what

    def _waits_for(self) -> list[str]:
        if self._informers is None:
            return ["the first objects" if self._server is not None else "the API server"]
        return self._informers.unsynced() + [what for node in self.nodes.values() for what in node.waits_for()]

    async def _start_server(self) -> None:
        host = self._options.host
        everywhere = host in _EVERYWHERE
        store = SqliteStore(self.data.state, extractor(), used=self.data.had_cluster(), recover=self._options.recover)
        await store.start()
        try:
            credentials = auth.ensure(self.data.tls, self._clock, [gethostname()] if everywhere else [host])
        except BaseException:
            await store.stop()
            raise
        self._server = ApiServer(
            store,
            clock=self._clock,
            pod_logs=self._pod_logs,
            pod_streams=lambda namespace, name, options: self._streams.open(namespace, name, options),
            node_proxy=self._node_proxy,
            credentials=credentials,
        )
        await self._server.start()
        self.data.keep(self.plan.settings, self._server.cluster_id())
        url, taken = await self._listen(self._server)
        if everywhere:
            url = url.replace(_EVERYWHERE[host], "127.0.0.1")
        found = urlsplit(url)
        self._address = (found.hostname or host, found.port or 0)
        auth.write_kubeconfig(self.data.kubeconfig, url, credentials)
        if self.kubeconfig != self.data.kubeconfig:
            auth.write_kubeconfig(self.kubeconfig, url, credentials, self._options.kubeconfig_owner)
        self.client = Client(self._server.transport())
        if former := self.data.clusters()[:-1]:
            note = {"metadata": {"annotations": {names.FORMER_CLUSTERS: ",".join(former)}}}
            await self.client.patch(NAMESPACES, "kube-system", note)
        self._logs = LogRouter(self.client)
        self._streams = StreamRouter(self.client)
        self._progress("API server", url + taken)

    async def _listen(self, server: ApiServer) -> tuple[str, str]:
        """Its URL, and what to say of a port that was taken. Raises: BusyError only for one that was asked for."""
        listen = partial(server.listen, self._options.host, expose=self._options.host not in auth.LOOPBACK)
        if self._options.port is not None:
            return await listen(self._options.port), ""
        port = auth.port_of(self.data.kubeconfig) or self.usual_port
        try:
            return await listen(port), ""
        except BusyError:
            return await listen(0), f" (port {port} is taken by another program)"

    async def _start_controllers(self) -> None:
        client, clock = self.client, self._clock
        settings = self.plan.settings
        pools = [pool.name for pool in next(iter(self.plan.nodes.values()))]
        await bootstrap.ensure_all(client, pools=pools, compat=settings.compat)
        if settings.flexvolume:
            await bootstrap.ensure_drivers(client, [names.FLEX_COUNTED])
        await bootstrap.ensure_inline(client, settings.inline, clock)
        self._informers = informers = Informers(client)
        events = self._events("default-scheduler")
        scheduler = Scheduler(client, informers, events, clock=clock, strategy=settings.scoring)
        loops = control_plane(
            client,
            informers,
            self._events,
            clock=clock,
            scheduler=scheduler,
            capacity=self.plan.capacity,
            drivers=self.plan.provisioners,
        )
        certificates = certificate_loops(client, informers, self._events("tonnage"), settings.inline, clock=clock)
        loops = {**loops, **certificates, **self._access_loops(informers), **self._attach_loops(informers)}
        informers.start()
        for name, loop in loops.items():
            self._tasks.start(supervise(name, loop.run), name)
        await informers.wait_synced()
        self._progress("scheduler and controllers", ", ".join(sorted(set(loops) - {"scheduler"})))

    def _access_loops(self, informers: Informers) -> dict[str, RootCertificatePublisher | ClusterRoleAggregator]:
        """Controllers of what programs in pods need to use the API server."""
        assert self._server is not None
        assert self._server.credentials is not None
        certificate = self._server.credentials.certificate.read_text()
        return {
            "root certificates": RootCertificatePublisher(self.client, informers, certificate),
            "role aggregation": ClusterRoleAggregator(self.client, informers),
        }

    def _attach_loops(self, informers: Informers) -> dict[str, AttachLoops]:
        """What external-attacher does, for the drivers of --csi-endpoint."""
        endpoints = [AttachEndpoint(path, node) for node, found in self.plan.endpoints.items() for path in found]
        if not endpoints:
            return {}
        config = ControllerConfig("box", attach_endpoints=endpoints)
        context = LoopContext(self.client, informers, self._events("csi-attacher"), config, self._clock)
        return {"volume attachments": AttachLoops(context, endpoints)}

    def _events(self, component: str, *, host: str = "") -> EventRecorder:
        recorder = EventRecorder(self.client, component, host=host, clock=self._clock)
        self._tasks.start(supervise(f"events of {component}", recorder.run), f"events {component}")
        return recorder

    async def _start_nodes(self) -> None:
        assert self._informers is not None
        plan = replace(self.plan, server=self._address)
        for name in self.plan.nodes:
            events = self._events("kubelet", host=name)
            self.nodes[name] = BoxNode(self.client, self._informers, events, name, plan, self.data, clock=self._clock)
            self._logs.add(name, self.nodes[name].kubelet.logs)
            self._streams.add(name, self.nodes[name].kubelet)
        try:
            for begin in (BoxNode.open, BoxNode.start):
                async with asyncio.TaskGroup() as starting:
                    for node in self.nodes.values():
                        starting.create_task(begin(node))
        except* TonnageError as failures:
            raise failures.exceptions[0] from None
        for name, node in self.nodes.items():
            await node.published()
            self._progress(f"node {name}", node.describe())

    def _pod_logs(self, namespace: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        return self._logs.read(namespace, name, query)

    async def _node_proxy(self, node: str, path: str) -> tuple[str, bytes]:
        if node not in self.nodes:
            raise ApiError(f"node {node} is not served here", code=503, reason="ServiceUnavailable")
        return await self.nodes[node].kubelet.answer(path)

    async def stop(self) -> None:
        """End containers, unmount volumes, stop everything, within 5 s. Objects and volumes stay. Idempotent.

        A start() that did not come to its end leaves nothing that it made: no folder, and no new cluster. Where volumes
        were made meanwhile, as the API server serves before all nodes are ready, everything stays.
        """
        async with asyncio.TaskGroup() as stopping:
            for node in self.nodes.values():
                stopping.create_task(node.stop(seconds=_STOP_SECONDS, is_up=self._is_up))
        self._is_used = self._is_used or any(node.has_new_volumes for node in self.nodes.values())
        self.nodes.clear()
        await self._tasks.close()
        if self._informers is not None:
            await self._informers.close()
        if self._server is not None:
            await self._server.stop()
            self._server = None
            await asyncio.to_thread(clean, self.data)
        if not self._is_up:
            await asyncio.to_thread(self._undo)
        self.data.close()

    def _elsewhere(self) -> Iterator[Path]:
        """Where pools that make their folder lie outside of the data folder."""
        for pool in chain.from_iterable(self.plan.nodes.values()):
            if pool.where is not None and not pool.kind.is_prepared and self.data.path not in pool.where.parents:
                yield pool.where

    def _undo(self) -> None:
        """Blocking."""
        if self._is_used:
            if self.data.is_new or self._new_pools:
                log.warning(
                    "data folder %s: is not removed: volumes were made before the start failed; start it again with"
                    " `tonnage up`, or remove it and its volumes with `tonnage down --purge`",
                    self.data.path,
                )
            return
        for folder, made in self._new_pools.items():
            try:
                remove_unused(folder)
            except TonnageError as failure:
                log.warning("what the failed start made is left: %s", failure)
            remove_empty(made)
        try:
            self.data.undo()
        except TonnageError as failure:
            log.warning("what the failed start made is left: %s", failure)
