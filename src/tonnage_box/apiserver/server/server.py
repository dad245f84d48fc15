"""The embedded API server: store, resources, HTTPS and in-process transports."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import BusyError, HostError, InvalidError, UnavailableError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.policy import SYSTEM_CLASSES
from tonnage.kubernetes.client.transport import Request, Response
from tonnage_box.api.remote_command import OpenSession
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.access.default_roles import cluster_role_bindings, cluster_roles
from tonnage_box.apiserver.access.issuer import discovery
from tonnage_box.apiserver.admission import priority
from tonnage_box.apiserver.admission.quota_controller import QuotaController
from tonnage_box.apiserver.discovery.catalog import Catalog
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.request.options import WriteOptions
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.request.user import ADMIN, ApiUser
from tonnage_box.apiserver.rest.event_expiry import EventExpiry
from tonnage_box.apiserver.rest.handler import Handler, NodeProxy, PodLogs, Sources
from tonnage_box.apiserver.rest.object_meta import Stamps
from tonnage_box.apiserver.rest.writes import Writes
from tonnage_box.apiserver.server.auth import Credentials
from tonnage_box.apiserver.server.health import basic
from tonnage_box.apiserver.server.https import HttpsServer
from tonnage_box.apiserver.server.inprocess import InProcess
from tonnage_box.apiserver.storage.store import Extract, Obj, ObjectKey, Store
from tonnage_box.apiserver.storage.watch import Hub

log = logging.getLogger(__name__)
DEFAULT_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def extractor() -> Extract:
    """Function with which a store extracts fields for field selectors, of every row of the collection."""
    rows: dict[str, list[Resource]] = {}
    for resource in RESOURCES.values():
        rows.setdefault(resource.collection, []).append(resource)

    def fields(collection: str, obj: Obj) -> Mapping[str, str]:
        shown = rows.get(collection, ())
        if len(shown) == 1:
            return shown[0].fields(obj)
        found: dict[str, str] = {}
        for row in shown:
            found |= row.fields(row.outward(obj))
        return found

    return fields


class ApiServer:
    """Call start(), then listen() for HTTPS and transport() for clients in this process; stop() ends all.

    The store must have been made with extractor(). pod_logs answers pods/log; pod_streams pods/exec and pods/attach;
    node_proxy nodes/proxy.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        pod_logs: PodLogs | None = None,
        pod_streams: OpenSession | None = None,
        node_proxy: NodeProxy | None = None,
        credentials: Credentials | None = None,
        entropy: random.Random | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or RealClock()
        self.credentials = credentials
        self.hub = Hub(store)
        self.url = ""
        self._quota = QuotaController(store, self.clock)
        self._events = EventExpiry(store, self.clock)
        catalog = Catalog(RESOURCES.values())

        async def documented(request: Request) -> Response | None:
            if request.path == "/metrics":
                for collection in store.collections():
                    metrics.API_OBJECTS.labels(collection).set(store.count(collection))
            found = await catalog.answer(request) or await basic(request)
            return found or await discovery(request, self.access.key)

        if credentials is None:
            self.access = ApiAccess(store, self.clock)
        else:
            self.access = ApiAccess(store, self.clock, credentials.signing_key, credentials.is_token)
        self._writes = Writes(store, Stamps(self.clock, entropy or random.Random()), self._quota.used, self.access)
        sources = Sources(documented, self.access, pod_logs, pod_streams, node_proxy)
        self._handler = Handler(self.hub, RESOURCES, self._writes, sources)
        self._https: HttpsServer | None = None

    async def start(self) -> None:
        """Load the store and make what every cluster has: namespaces and priorities.

        Raises: what Store.start raises.
        """
        await self.store.start()
        self._quota.start()
        self._events.start()
        self.access.start()
        namespaces = [{"metadata": {"name": name}} for name in DEFAULT_NAMESPACES]
        classes = [priority.system_class(name) for name in SYSTEM_CLASSES]
        await self._ensure(kinds.NAMESPACES, namespaces)
        await self._ensure(kinds.PRIORITY_CLASSES, classes)
        if self.access.issues_tokens:  # without tokens no user needs a role
            await self._ensure(kinds.CLUSTER_ROLES, cluster_roles())
            await self._ensure(kinds.CLUSTER_ROLE_BINDINGS, cluster_role_bindings())

    async def _ensure(self, kind: Kind[Any], objects: Iterable[Obj]) -> None:
        """Create what is missing; the writes share commits."""
        row = RESOURCES[kind.key]
        missing = [o for o in objects if self.store.get(ObjectKey(row.collection, "", o["metadata"]["name"])) is None]
        await asyncio.gather(*(self._writes.create(RequestPath(row), obj, WriteOptions()) for obj in missing))

    async def listen(self, host: str = "127.0.0.1", port: int = 0, *, expose: bool = False) -> str:
        """Serve HTTPS and return the URL.

        Raises: InvalidError (not loopback, unless exposed on purpose), BusyError (port).
        """
        if self.credentials is None:
            raise InvalidError("an API server without credentials serves this process only")
        if not expose and not _is_loopback(host):
            raise InvalidError(
                f"{host} can be reached by others: the API server listens on loopback unless exposed on purpose"
            )
        listening = HttpsServer(self._handler, self.hub, self.credentials, self.access)
        try:
            bound = await listening.start(host, port)
        except OSError as error:
            await listening.stop()
            if error.errno == errno.EADDRINUSE:
                raise BusyError(f"port {port} on {host} is taken by another program: choose another port") from None
            raise HostError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
        self._https = listening
        shown = f"[{host}]" if ":" in host else host
        self.url = f"https://{shown}:{bound}"
        log.info("API server ready url=%s", self.url)
        return self.url

    def transport(self, user: ApiUser | str = ADMIN) -> InProcess:
        """A transport for clients of this process. A user that is only a name may do everything."""
        return InProcess(self._handler, self.hub, ApiUser(user, ADMIN.groups) if isinstance(user, str) else user)

    def cluster_id(self) -> str:
        """uid of the namespace kube-system. Raises: UnavailableError before start()."""
        record = self.store.get(ObjectKey(kinds.NAMESPACES.plural, "", "kube-system"))
        if record is None:
            raise UnavailableError("the API server has not been started")
        meta: dict[str, Any] = record.decode()["metadata"]
        return str(meta["uid"])

    async def stop(self) -> None:
        """End all watches and requests within a second, then the store. Idempotent."""
        self.hub.close_all()
        await self._quota.stop()
        await self._events.stop()
        if self._https is not None:
            await self._https.stop()
            self._https = None
        await self.store.stop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
