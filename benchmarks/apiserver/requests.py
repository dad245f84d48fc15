"""The longest time that one request holds the API server's event loop: the worst of each kind that is still accepted.

Everything else that the process does waits for so long: leases, watches, the scheduler of a box. A task that does
nothing but yield measures the turns of the loop while the request is served; the best of three tries counts, for what
other processes take from this one is no fault of the request.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.apiserver.load import load, pod, said, served
from benchmarks.figure import Figure

from tonnage.base.aio.clock import RealClock
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.observe.process import settle
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import JSON, JSON_PATCH, MERGE_PATCH, PROTOBUF, STRATEGIC_PATCH, Request
from tonnage.scheduler.scheduler import Scheduler
from tonnage_box.apiserver.protobuf import envelope
from tonnage_box.apiserver.protobuf.wire import delimited
from tonnage_box.apiserver.request.negotiate import MAX_VALUES
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.apiserver.storage.store import StoreEvent
from tonnage_box.control_plane import control_plane

MOST_RUNS = 1
TRIES, OBJECTS, MOST_MS = 3, 10_000, 50.0
SPACE = "/api/v1/namespaces/default"
MAPS, PODS = f"{SPACE}/configmaps", f"{SPACE}/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
META = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
YAML = "application/yaml"
LIMIT = 3 << 20
Ask = Callable[[ApiServer], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """One kind of request; before is sent first and not measured, and again before each try."""

    name: str
    request: Request
    before: tuple[Request, ...] = ()
    status: int = 200


def filled(head: bytes, items: Callable[[int], bytes], tail: bytes, each: int = 0, joint: bytes = b",") -> bytes:
    """A body of almost 3 MiB: as many items as fit, each of so many keys and values."""
    parts: list[bytes] = []
    size, values = len(head) + len(tail), 100
    while True:
        item = items(len(parts))
        size, values = size + len(item) + len(joint), values + each
        if size > LIMIT or values > MAX_VALUES:
            break
        parts.append(item)
    return head + joint.join(parts) + tail


def body(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def named(name: str, **more: Any) -> dict[str, Any]:
    """An object of that name."""
    return {"metadata": {"name": name}, **more}


def post(path: str, data: bytes, kind: str = JSON, query: Mapping[str, str] | None = None) -> Request:
    """A create."""
    return Request("POST", path, dict(query or {}), data, kind)


def patch(path: str, data: bytes, kind: str) -> Request:
    """A patch."""
    return Request("PATCH", path, {}, data, kind)


def keys(count: int) -> bytes:
    """A ConfigMap of so many keys, in protobuf."""
    return envelope.encode(
        {"apiVersion": "v1", "kind": "ConfigMap"} | named("x", data={f"k{n}": "v" for n in range(count)})
    )


def containers_of(count: int) -> bytes:
    """A pod of so many empty containers, in protobuf: two bytes each."""
    return envelope.wrap("v1", "Pod", delimited(2, delimited(2, b"") * count))


def bodies() -> list[Case]:
    """Large bodies that are created."""
    start, strict = b'{"metadata":{"name":"x"},', {"fieldValidation": "Strict"}
    gone = Request("DELETE", f"{MAPS}/x")
    data = filled(start + b'"data":{', lambda n: b'"k%d":"v"' % n, b"}}", 2)
    containers = filled(
        b'{"metadata":{"name":"x"},"spec":{"nodeName":"n","containers":[',
        lambda n: b'{"name":"c%d","image":"i","resources":{"limits":{"cpu":"%d"}}}' % (n, n),
        b"]}}",
        22,  # with defaults
    )
    wrong = filled(b'{"metadata":{"name":"x"},"spec":{"containers":[', lambda n: b'{"name":"C%d"}' % n, b"]}}", 11)
    some = b",".join(b'{"name":"C%d"}' % n for n in range(1070))
    small_wrong = b'{"metadata":{"name":"x"},"spec":{"containers":[' + some + b"]}}"
    env = filled(
        b'{"metadata":{"name":"x"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i","env":[',
        lambda n: b'{"name":"E%d","value":"v"}' % n,
        b"]}]}}",
        5,
    )
    removed = Request("DELETE", f"{PODS}/x", {"gracePeriodSeconds": "0"})
    text = filled(start + b'"u":{"a":"', lambda n: b'\\"\\u00e9', b'"}}', joint=b"")
    return [
        Case("JSON, empty objects", post(MAPS, filled(start + b'"u":[', lambda n: b"{}", b"]}", 2)), (gone,), 201),
        Case(
            "JSON, nested lists",
            post(MAPS, filled(start + b'"u":[', lambda n: b"[[[[[]]]]]", b"]}", 6)),
            (gone,),
            201,
        ),
        Case("JSON, numbers", post(MAPS, filled(start + b'"u":[', lambda n: b"1", b"]}", 1)), (gone,), 201),
        Case("JSON, keys", post(MAPS, data), (gone,), 201),
        Case(
            "JSON, long texts",
            post(MAPS, filled(start + b'"u":[', lambda n: b'"%s"' % (b"x" * 60), b"]}", 1)),
            (gone,),
            201,
        ),
        Case("JSON, too many keys", post(MAPS, filled(start + b'"u":{', lambda n: b'"k%d":"v"' % n, b"}}")), (), 400),
        Case("JSON, keys, strict", post(MAPS, data, query=strict), (gone,), 201),
        Case("JSON, one text", post(MAPS, text), (gone,), 201),
        Case("JSON, unknown fields", post(MAPS, filled(start, lambda n: b'"u%d":1' % n, b"}", 2)), (gone,), 201),
        Case("PUT of as much", Request("PUT", f"{MAPS}/x", {}, data), (gone, post(MAPS, body(named("x"))))),
        Case("PUT of what is there", Request("PUT", f"{MAPS}/x", {}, data), (gone, post(MAPS, data))),
        Case("pod, containers", post(PODS, containers), (removed,), 201),
        Case("pod, environment", post(PODS, env), (removed,), 201),
        Case("pod, wrong containers", post(PODS, wrong), (removed,), 422),
        Case("pod, wrong containers, 16 KiB", post(PODS, small_wrong), (removed,), 422),
        Case("delete of a pod with containers", removed, (removed, post(PODS, containers))),
        Case("protobuf, keys", post(MAPS, keys(45_000), PROTOBUF), (gone,), 201),
        Case("protobuf, too many fields", post(PODS, containers_of(1_500_000), PROTOBUF), (), 400),
        Case("YAML, 4 KiB", post(MAPS, b"metadata: {name: x}\nu:\n" + b"- 1\n" * 1000, YAML), (gone,), 201),
        Case(
            "YAML, 90,000 events",
            post(MAPS, b"metadata: {name: x}\ndata:\n" + b"".join(b" k%d: v\n" % n for n in range(45_000)), YAML),
            (gone,),
            201,
        ),
        Case("YAML, too many events", post(MAPS, b"u:\n" + b"- 1\n" * 700_000, YAML), (), 400),
    ]


RBAC, APPS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default", "/apis/apps/v1/namespaces/default"
LABELS = {"app": "x"}
CONTAINER = {"name": "c", "image": "i"}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": LABELS}, "spec": {"containers": [CONTAINER]}}
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": LABELS}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": LABELS}}


def expressions(count: int) -> dict[str, Any]:
    """A selector of the pods, with so many expressions."""
    return {
        "matchLabels": LABELS,
        "matchExpressions": [{"key": f"k{n}", "operator": "DoesNotExist"} for n in range(count)],
    }


def picky(**spec: Any) -> bytes:
    """A pod that asks for much."""
    return body({"metadata": {"name": "x", "labels": LABELS}, "spec": {"containers": [CONTAINER], **spec}})


def affine(count: int) -> bytes:
    """A pod with so many affinity terms."""
    return picky(affinity={"podAffinity": {REQUIRED: [TERM] * count}})


def budget(count: int) -> bytes:
    """A PodDisruptionBudget with so many expressions."""
    return body(named("x", spec={"minAvailable": 1, "selector": expressions(count)}))


def replica_set(count: int) -> bytes:
    """A ReplicaSet with so many expressions."""
    return body(named("x", spec={"replicas": 0, "selector": expressions(count), "template": TEMPLATE}))


def defaults(count: int) -> bytes:
    """A LimitRange that gives each container so many resources."""
    amounts = {f"a.b/r{n}": "1" for n in range(count)}
    return body(named("x", spec={"limits": [{"type": "Container", "default": amounts}]}))


def schedule() -> bytes:
    """A CronJob whose schedule has 2.8 MB."""
    template = {"spec": {"template": TEMPLATE | {"spec": TEMPLATE["spec"] | {"restartPolicy": "Never"}}}}
    return body(named("x", spec={"schedule": "0," * 1_400_000 + "0 * * * *", "jobTemplate": template}))


UNKNOWN_FIELDS = envelope.wrap("v1", "ConfigMap", b"\xb8\x3e\x01" * 1_000_000)
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LIMITS = f"{SPACE}/limitranges"


def products() -> list[Case]:
    """Objects whose parts are compared with each other or with all pods; most of these are above a bound."""
    words = [f"w{n}" for n in range(28)]
    rule = {"verbs": words, "apiGroups": words, "resources": words, "resourceNames": words}
    ports = [{"name": f"p{n}", "port": 1 + n // 3, "protocol": ("TCP", "UDP", "SCTP")[n % 3]} for n in range(8100)]
    service = body(named("x", spec={"type": "NodePort", "ports": ports}))
    spread = [SPREAD | {"topologyKey": f"k{n}"} for n in range(4000)]
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(19_000)]
    stateful = {
        "replicas": 2**31 - 1, "podManagementPolicy": "Parallel", "serviceName": "s",
        "selector": {"matchLabels": LABELS}, "template": TEMPLATE,
    }  # fmt: skip
    gone = Request("DELETE", f"{RBAC}/roles/x")
    return [
        Case("role of 28 x 28 x 28 x 28", post(f"{RBAC}/roles", body(named("x", rules=[rule]))), (gone,), 201),
        Case("service of 8,100 node ports", post(f"{SPACE}/services", service, query={"dryRun": "All"}), (), 201),
        Case("budget of 9,000 expressions", post(BUDGETS, budget(9000)), (), 422),
        Case("ReplicaSet of 9,000 expressions", post(f"{APPS}/replicasets", replica_set(9000)), (), 422),
        Case("pod of 4,500 affinity terms", post(PODS, affine(4500)), (), 422),
        Case("pod of 4,000 spread constraints", post(PODS, picky(topologySpreadConstraints=spread)), (), 422),
        Case("pod of 19,000 tolerations", post(PODS, picky(tolerations=tolerations)), (), 422),
        Case("limit range of 20,000 resources", post(LIMITS, defaults(20_000)), (), 422),
        Case("schedule of 2.8 MB", post("/apis/batch/v1/namespaces/default/cronjobs", schedule()), (), 422),
        Case("StatefulSet of 2147483647", post(f"{APPS}/statefulsets", body(named("x", spec=stateful))), (), 422),
        Case("protobuf, unknown fields", post(MAPS, UNKNOWN_FIELDS, PROTOBUF), (), 400),
    ]


async def six_unknown(server: ApiServer) -> Figure:
    """Six such bodies at once: a small one that comes after them waits for the thread of large requests no longer."""
    transport, best = server.transport(), float("inf")
    for _ in range(TRIES):
        large = [transport.request(post(MAPS, UNKNOWN_FIELDS, PROTOBUF)) for _ in range(6)]
        start = time.perf_counter()
        await asyncio.gather(*large)
        best = min(best, time.perf_counter() - start)
    return Figure("six protobuf bodies of unknown fields", best * 1000, "ms")


def patches() -> list[Case]:
    """Large patches, of small and of large objects."""
    path, gone = f"{MAPS}/x", Request("DELETE", f"{MAPS}/x")
    small, start = post(MAPS, body(named("x", data={"a": "b"}))), b'{"metadata":{"name":"x"},"data":{'
    large = post(MAPS, filled(start, lambda n: b'"k%d":"v"' % n, b"}}", 2))
    finalizers = [f"a.b/c{n}" for n in range(49_900)]
    many = {"metadata": {"finalizers": finalizers, "$setElementOrder/finalizers": finalizers[::-1]}}
    free = patch(path, body({"metadata": {"finalizers": None}}), MERGE_PATCH)
    template = {"containers": [{"name": f"c{n}", "image": "i"} for n in range(7000)]}
    images = body({"spec": {"containers": [{"name": f"c{n}", "image": "j"} for n in range(7000)]}})
    removed = Request("DELETE", f"{PODS}/x", {"gracePeriodSeconds": "0"})
    adds = body([{"op": "add", "path": f"/data/k{n}", "value": "v" * 50} for n in range(10_000)])
    copies = body([{"op": "copy", "from": "/data", "path": f"/c{n}"} for n in range(10_000)])
    tests = body([{"op": "test", "path": "/data/k1", "value": "v"} for n in range(10_000)])
    return [
        Case("JSON patch, 10,000 adds", patch(path, adds, JSON_PATCH), (gone, small)),
        Case("JSON patch, tests in a large object", patch(path, tests, JSON_PATCH), (gone, large)),
        Case("JSON patch, copies", patch(path, copies, JSON_PATCH), (gone, small)),
        Case("merge patch of a large object", patch(path, b'{"data":{"k1":"w"}}', MERGE_PATCH), (gone, large)),
        Case("merge patch, large", patch(path, large.body, MERGE_PATCH), (gone, small)),
        Case("strategic patch, finalizers", patch(path, body(many), STRATEGIC_PATCH), (free, gone, small)),
        Case(
            "strategic patch, containers",
            patch(f"{PODS}/x", images, STRATEGIC_PATCH),
            (free, removed, post(PODS, body(named("x", spec=template)))),
        ),
    ]


def reads() -> list[Case]:
    """Reads of 10,000 pods."""
    labels = ",".join(f"a{n}!=b" for n in range(1000))
    values = f"app in ({','.join(f'v{n}' for n in range(8000))})"
    return [
        Case("list", Request("GET", PODS)),
        Case("list as a Table", Request("GET", PODS, accept=TABLE)),
        Case("list of metadata", Request("GET", PODS, accept=META)),
        Case("list of 500 as a Table", Request("GET", PODS, {"limit": "500"}, accept=TABLE)),
        Case("list in protobuf", Request("GET", PODS, accept=PROTOBUF)),
        Case("list, pretty", Request("GET", PODS, {"pretty": "true"})),
        Case("list, 1,000 requirements", Request("GET", PODS, {"labelSelector": labels})),
        Case("list, 8,000 values", Request("GET", PODS, {"labelSelector": values})),
        Case("list, field selector", Request("GET", PODS, {"fieldSelector": "spec.nodeName=n,status.phase!=Failed"})),
        Case("OpenAPI v2", Request("GET", "/openapi/v2")),
        Case("OpenAPI v3", Request("GET", "/openapi/v3/api/v1")),
        Case("discovery", Request("GET", "/apis")),
        Case("metrics", Request("GET", "/metrics")),
    ]


async def held(work: Awaitable[Any]) -> float:
    """Seconds of the longest turn of the loop while work is done."""
    longest, ended = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not ended:
            start = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - start)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    try:
        await work
        await asyncio.sleep(0)
    finally:
        ended = True
        await watching
    return longest


async def figure(server: ApiServer, case: Case) -> Figure:
    """The longest turn of the loop of one kind of request."""
    transport, best = server.transport(), float("inf")
    for _ in range(TRIES):
        for request in case.before:
            await transport.request(request)
        gc.collect()
        answers: list[int] = []

        async def ask(answers: list[int] = answers) -> None:
            answers.append((await transport.request(case.request)).status)

        best = min(best, await held(ask()))
        assert answers == [case.status], (case.name, answers)
    return Figure(f"loop held: {case.name}", best * 1000, "ms", at_most=MOST_MS)


async def stocked(server: ApiServer) -> None:
    """Make 10,000 pods."""
    transport = server.transport()
    for start in range(0, OBJECTS, 200):
        made = (Request("POST", PODS, body=pod(f"p{n}")) for n in range(start, start + 200))
        await asyncio.gather(*(transport.request(request) for request in made))
    settle()  # as the box does each minute


async def watches(server: ApiServer) -> list[Figure]:
    """The beginning of a watch, and one event for 5,000 watchers."""
    transport, rows = server.transport(), []

    async def begin(accept: str) -> None:
        seen = 0
        async with transport.stream(Request("GET", PODS, {"watch": "1"}, accept=accept)) as chunks:
            async for chunk in chunks:
                seen += chunk.count(b"ADDED")
                if seen >= OBJECTS:
                    return
                await asyncio.sleep(0)

    for name, accept in (("", JSON), (" as a Table", TABLE), (" in protobuf", PROTOBUF)):
        best = min([await held(begin(accept)) for _ in range(TRIES)])
        rows.append(Figure(f"loop held: watch from the start{name}", best * 1000, "ms", at_most=MOST_MS))
    opened = [transport.stream(Request("GET", MAPS, {"watch": "1"})) for _ in range(5000)]
    for watch in opened:
        await watch.__aenter__()
    times = [await held(transport.request(post(MAPS, body(named(f"w{n}"))))) for n in range(TRIES)]
    rows.append(Figure("loop held: event to 5,000 watchers", min(times) * 1000, "ms", at_most=MOST_MS))
    for watch in opened:
        await watch.__aexit__(None, None, None)
    return rows


async def collections(server: ApiServer) -> Figure:
    """Deletion of all 10,000 pods by one request."""
    gone = Request("DELETE", PODS, {"gracePeriodSeconds": "0"})
    seconds = await held(server.transport().request(gone))
    return Figure("loop held: delete of 10,000 objects", seconds * 1000, "ms", at_most=MOST_MS)


@asynccontextmanager
async def controlled(server: ApiServer) -> AsyncIterator[None]:
    """The controllers and the scheduler of a box, in this process."""
    client, clock, tasks = Client(server.transport()), RealClock(), Background("controllers")
    informers, events = Informers(client), EventRecorder(client, "benchmark")
    scheduler = Scheduler(client, informers, events, clock=clock)
    parts = control_plane(client, informers, lambda component: events, clock=clock, scheduler=scheduler)
    informers.start()
    for name, part in parts.items():
        tasks.start(supervise(name, part.run))
    await informers.wait_synced()
    try:
        yield
    finally:
        await tasks.close()
        await informers.close()


async def until(server: ApiServer, collection: str, count: int) -> None:
    """Wait until there are so many objects."""
    reached = asyncio.Event()

    def look(event: StoreEvent) -> None:
        if event.type == "DELETED" and server.store.count(collection) == count:
            reached.set()

    server.store.listen(look)
    await reached.wait()


async def beside_controllers(server: ApiServer) -> list[Figure]:
    """What a request makes the controllers of the box do, in the same loop."""
    transport, rows = server.transport(), []

    async def add(name: str, work: Awaitable[Any]) -> None:
        rows.append(Figure(f"loop held: {name}", await held(work) * 1000, "ms", at_most=MOST_MS))

    async def ask(request: Request, status: int = 200) -> bytes:
        answer = await transport.request(request)
        assert answer.status == status, (answer.status, answer.body[:300])
        return answer.body

    async def settled(request: Request) -> None:
        """A new object, 300 pods that it meets, and what the controllers do then."""
        await ask(request, 201)
        for n in range(300):  # one by one: 300 at once would hold the loop by themselves
            one = {"metadata": {"name": f"m{n}", "labels": LABELS}, "spec": {"containers": [CONTAINER]}}
            await ask(post(PODS, body(one)), 201)
        await asyncio.sleep(1)
        for n in range(300):  # a ReplicaSet of none has deleted them
            await transport.request(Request("DELETE", f"{PODS}/m{n}", {"gracePeriodSeconds": "0"}))

    async def fill(path: str, meta: dict[str, Any]) -> None:
        for start in range(0, OBJECTS, 200):
            names = (f"x{n}" for n in range(start, start + 200))
            await asyncio.gather(*(ask(post(path, body({"metadata": meta | {"name": n}})), 201) for n in names))
        settle()

    async def collected() -> None:
        await ask(Request("DELETE", f"{MAPS}/owner"))
        await until(server, "configmaps", 0)

    async def emptied() -> None:
        await ask(Request("DELETE", "/api/v1/namespaces/full"))
        await until(server, "namespaces", 4)

    async def counted() -> None:
        quota = body(named("q", spec={"hard": {"configmaps": "20k", "pods": "20k", "requests.cpu": "1M"}}))
        await ask(post("/api/v1/namespaces/full/resourcequotas", quota), 201)
        await ask(post("/api/v1/namespaces/full/configmaps", body(named("y"))), 201)

    for gone in ("configmaps", "pods"):
        await ask(Request("DELETE", f"{SPACE}/{gone}", {"gracePeriodSeconds": "0"}))
    large = filled(
        b'{"metadata":{"name":"x"},"spec":{"containers":[',
        lambda n: b'{"name":"c%d","image":"i","resources":{"limits":{"cpu":"%dm"}}}' % (n, n + 1),
        b"]}}",
        22,
    )
    removed = Request("DELETE", f"{PODS}/x", {"gracePeriodSeconds": "0"})
    async with controlled(server):
        owner = json.loads(await ask(post(MAPS, body(named("owner"))), 201))["metadata"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
        await fill(MAPS, {"ownerReferences": [reference]})
        await add("garbage collection of 10,000 dependents", collected())
        await ask(post("/api/v1/namespaces", body(named("full"))), 201)
        await fill("/api/v1/namespaces/full/configmaps", {})
        await add("quota of 10,000 objects", counted())
        await add("deletion of a namespace with 10,000 objects", emptied())
        await ask(post(f"{SPACE}/resourcequotas", body(named("q", spec={"hard": {"requests.cpu": "1G"}}))), 201)
        await add("pod with containers, with quota and scheduler", ask(post(PODS, large), 201))
        state = {"containerStatuses": [{"name": f"c{n}", "image": "i", "ready": False} for n in range(9000)]}
        status = patch(f"{PODS}/x/status", body({"status": state}), MERGE_PATCH)
        await add("status of a pod with containers", ask(status))
        await add("delete of that pod", ask(removed))
        await ask(Request("DELETE", f"{SPACE}/resourcequotas/q"))
        for name, path, largest in (
            ("pod of 100 affinity terms", PODS, affine(100)),
            ("budget of 99 expressions", BUDGETS, budget(99)),
            ("ReplicaSet of 99 expressions", f"{APPS}/replicasets", replica_set(99)),
            ("limit range of 100 resources", LIMITS, defaults(100)),
        ):
            await add(name, settled(post(path, largest)))
            await ask(Request("DELETE", f"{path}/x", {"gracePeriodSeconds": "0"}))
    return rows


async def over_https(server: ApiServer) -> list[Figure]:
    """A list of 10,000 pods, and a body of 3 MiB, by a client in another process."""
    rows = []
    for name, verb in (("list over HTTPS", "list"), ("3 MiB over HTTPS", "send")):
        process = await load(server, verb, str(TRIES))
        best = float("inf")
        for _ in range(TRIES):
            assert await said(process) == "ready"
            assert process.stdin is not None
            process.stdin.write(b"\n")
            best = min(best, await held(said(process)))
        await process.wait()
        rows.append(Figure(f"loop held: {name}", best * 1000, "ms", at_most=MOST_MS))
    return rows


async def run() -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder)) as server:
            settle()
            rows = [await figure(server, case) for case in (*bodies(), *patches(), *products())]
            rows.append(await six_unknown(server))
            await stocked(server)
            rows += [await figure(server, case) for case in reads()]
            rows += [*await watches(server), *await over_https(server), await collections(server)]
            rows += await beside_controllers(server)
    return rows
