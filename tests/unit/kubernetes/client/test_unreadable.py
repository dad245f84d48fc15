"""An object that cannot be read is named and counted, and hides no other: in a get, a list, a watch, an informer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import inspect
from prometheus_client import generate_latest
from tests.unit.kubernetes.api.forms import at, paths, written, wrong

from tonnage.base.errors import ApiUnreadableError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES, PODS, Kind
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import CSINode
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage.kubernetes.client.transport import Request, Response

Obj = dict[str, Any]
_OF_ALL: tuple[tuple[str, ...], ...] = ((), ("name",), ("resourceVersion",))
"""Places of the metadata that are tried for every kind."""
LIMIT = 300
"""Seconds. It only ends what hangs."""


class Scripted:
    """A server that has some objects, and sends the events that it is given."""

    def __init__(self, *objects: Obj | bytes) -> None:
        self.objects = objects
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.lists = 0

    @property
    def objects(self) -> Sequence[Obj | bytes]:
        return self._objects

    @objects.setter
    def objects(self, objects: Sequence[Obj | bytes]) -> None:
        self._objects = objects
        named = ((_name(obj), obj) for obj in reversed(objects) if isinstance(obj, dict))
        self._named = {name: obj for name, obj in named if isinstance(name, str)}

    def send(self, type_: str, obj: Obj | bytes) -> None:
        self.events.put_nowait(b'{"type": "%s", "object": %s}\n' % (type_.encode(), _json(obj)))

    async def request(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        if name in self._named:
            return Response(200, _json(self._named[name]))
        self.lists += request.query.get("limit") != "1"  # one is asked for the version
        items = b",".join(_json(obj) for obj in self.objects)
        return Response(200, b'{"metadata": {"resourceVersion": "9", "continue": null}, "items": [%s]}' % items)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        while (line := await self.events.get()) is not None:
            yield line

    async def close(self) -> None:
        """Nothing is open."""


def _json(obj: Obj | bytes) -> bytes:
    return obj if isinstance(obj, bytes) else json.dumps(obj).encode()


def _name(obj: Obj) -> Any:
    return _meta(obj).get("name")


def _meta(obj: Obj) -> Obj:
    meta = obj.get("metadata")
    return meta if isinstance(meta, dict) else {}


def node(name: str, drivers: Any, version: int = 5, uid: str = "u") -> Obj:
    meta = {"name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"drivers": drivers}}


def good(name: str, version: int = 5, uid: str = "u") -> Obj:
    return node(name, [{"name": "d", "topologyKeys": None}], version, uid)


def bad(name: str, version: int = 5, uid: str = "u") -> Obj:
    return node(name, [{"name": "d", "topologyKeys": 7}], version, uid)


def counted(kind: Kind[Any]) -> float:
    text = generate_latest(metrics.REGISTRY).decode()
    lines = [
        line for line in text.splitlines() if line.startswith(f'tonnage_unreadable_objects{{resource="{kind.plural}"')
    ]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


@asynccontextmanager
async def mirrored(server: Scripted, kind: Kind[Any]) -> AsyncIterator[Informer[Any]]:
    informers = Informers(Client(server))
    informer = informers.of(kind)
    informers.start()
    async with asyncio.timeout(LIMIT):
        await informers.wait_synced()
        yield informer
    await informers.close()


async def until(informer: Informer[Any], **wanted: int) -> None:
    """Until the cache has these objects in these versions."""
    async with asyncio.timeout(LIMIT):
        while {o.key: int(o.metadata.resource_version) for o in informer.cache} != wanted:
            await asyncio.sleep(0)


def variants(kind: Kind[Any], value_of: Any) -> list[tuple[str, Obj]]:
    """One object for each place of the kind and each value_of(its type), with the place.

    Metadata is the same Struct in all kinds. What lies within it is tried for pods and nodes, its name and version
    for all.
    """
    found: list[tuple[str, Obj]] = []
    for path, form in paths(inspect.type_info(kind.struct)):
        if path[0] == "metadata" and path[1:] not in _OF_ALL and kind not in (PODS, NODES):
            continue
        for value in value_of(form):
            obj = at(path, value)
            if isinstance(obj.get("metadata", {}), dict) and path != ("metadata", "name"):
                obj.setdefault("metadata", {}).setdefault("name", f"n{len(found)}")
            found.append((written(path), obj))
    return found


def test_all_kinds_have_the_same_metadata() -> None:
    for kind in kinds.ALL:
        fields = inspect.type_info(kind.struct).fields  # type: ignore[attr-defined]
        assert [f.type.cls for f in fields if f.encode_name == "metadata"] == [ObjectMeta], kind.plural


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.plural)
async def test_null_anywhere_is_read_by_get_list_and_watch(kind: Kind[Any]) -> None:
    nulls = [obj for _, obj in variants(kind, lambda form: [None])]
    server = Scripted(*nulls)
    client = Client(server)
    listing = await client.list(kind)
    assert len(listing.items) == len(nulls)
    for obj in nulls:
        server.send("ADDED", obj)
    seen: list[Any] = []
    async with client.watch(kind) as batches:
        async for batch in batches:
            seen += [(event.type, event.object) for event in batch]
            if len(seen) == len(nulls):
                break
    assert seen == [("ADDED", obj) for obj in listing.items]
    for obj, read in zip(nulls, listing.items, strict=True):
        if name := _name(obj):
            assert await client.get(kind, name) == read


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.plural)
async def test_a_wrong_type_anywhere_is_named_and_hides_nothing(
    kind: Kind[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In the list and, of other names, in the watch; a version that can be read takes its place."""
    before = counted(kind)
    faults = variants(kind, wrong)
    named = [(place, obj) for place, obj in faults if isinstance(_meta(obj).get("name"), str)]
    server = Scripted(*(obj for _, obj in faults), {"metadata": {"name": "good"}})
    client = Client(server)
    with pytest.raises(ApiUnreadableError):
        await client.list(kind)
    for place, obj in named:
        with pytest.raises(ApiUnreadableError) as said:
            await client.get(kind, _name(obj))
        assert str(said.value).startswith(f"{kind.plural} {_name(obj)}: cannot be read: {place}: Expected"), place
    async with mirrored(server, kind) as informer:
        assert {o.metadata.name for o in informer.cache} == {"good"}
        assert counted(kind) - before == len(named) + (len(named) < len(faults))  # those without a name count as one
        for _, obj in faults:
            server.send("MODIFIED", obj)
        server.send("ADDED", {"metadata": {"name": "late", "resourceVersion": "10"}})
        async with asyncio.timeout(LIMIT):
            while informer.cache.get("late") is None:
                await asyncio.sleep(0)
        assert server.lists == 2  # the watch went on
        said_in_log = caplog.text  # joined anew each time it is asked for
        for place, obj in named:
            assert f"{kind.plural} {_name(obj)}: cannot be read: {place}: Expected" in said_in_log
            server.send("MODIFIED", {"metadata": {"name": _name(obj), "resourceVersion": "11"}})
        async with asyncio.timeout(LIMIT):
            while len(informer.cache) < 2 + len(named):
                await asyncio.sleep(0)
        assert counted(kind) - before == (len(named) < len(faults))


async def test_what_was_read_before_stays_until_it_can_be_read_again_or_is_gone() -> None:
    server = Scripted(good("a"), good("b"), good("c"))
    before = counted(CSI_NODES)
    changes: list[tuple[CSINode | None, CSINode | None]] = []
    async with mirrored(server, CSI_NODES) as informer:
        informer.cache.on_change(lambda old, new: changes.append((old, new)))
        changes.clear()
        for name in "abc":
            server.send("MODIFIED", bad(name, 6))
        server.send("MODIFIED", good("a", 7))
        server.send("DELETED", bad("b", 7))
        await until(informer, a=7, c=5)
        assert [(o and o.key, n and n.key) for o, n in changes] == [("a", "a"), ("b", None)]
        assert counted(CSI_NODES) - before == 1
        # Listed again: still not readable, still there. Then it is no more.
        server.objects = [good("a", 7), bad("c", 8)]
        server.events.put_nowait(None)
        informer.rescope()
        server.send("ADDED", good("d", 12))
        await until(informer, a=7, c=5, d=12)
        assert informer.cache.get("c") is not None
        server.objects = [good("a", 7), good("d", 12)]
        informer.rescope()
        await until(informer, a=7, d=12)
        assert counted(CSI_NODES) == before


async def test_another_object_of_the_same_name_is_not_taken_for_the_old_one() -> None:
    """It was deleted and made anew while we did not look: what is cached is gone for sure."""
    server = Scripted(good("a"), good("b"))
    async with mirrored(server, CSI_NODES) as informer:
        server.send("MODIFIED", bad("a", 6, uid="other"))
        await until(informer, b=5)
        server.objects = [bad("b", 8, uid="other"), good("c")]
        informer.rescope()
        await until(informer, c=5)


async def test_one_without_a_readable_name_may_be_any_that_is_missing() -> None:
    server = Scripted(good("a"), good("b"))
    async with mirrored(server, CSI_NODES) as informer:
        server.objects = [good("b", 6), b'{"metadata": 7}']
        informer.rescope()
        await until(informer, a=5, b=6)
        server.objects = [good("b", 6)]
        informer.rescope()
        await until(informer, b=6)


@pytest.mark.parametrize(
    "obj",
    [
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b'{"metadata": {"name": "x", "resourceVersion": "6"}, "spec": {"drivers": [{"name": "\xff"}]}}',
        b'{"metadata": {"name": "x", "generation": ' + b"9" * 5000 + b"}}",
        b'{"metadata": {"name": "x", "generation": 1e999}}',
        b'{"metadata": {"name": ["x"], "resourceVersion": {}}}',
        b'{"metadata": {"name": "x", "generation": null}, "spec": {"drivers": null, "other": 1e999}}',
    ],
    ids=lambda obj: obj[:60].decode(errors="replace"),
)
async def test_no_content_stops_an_informer(obj: bytes) -> None:
    server = Scripted(obj, good("a"))
    async with mirrored(server, CSI_NODES) as informer:
        assert informer.cache.get("a") is not None
        server.send("MODIFIED", obj)
        server.send("ADDED", good("b", 10))
        async with asyncio.timeout(LIMIT):
            while informer.cache.get("b") is None:
                await asyncio.sleep(0)
        assert server.lists == 1
        assert informer.version == "10"


async def test_a_filter_is_asked_about_what_can_be_read() -> None:
    """An object whose metadata cannot be read is named, and not given to the filter."""
    asked: list[str] = []
    unlabelled = {"metadata": {"name": "x", "labels": 7}}
    server = Scripted(unlabelled, good("a"), good("b"))

    def keep(metadata: Any) -> bool:
        asked.append(metadata.name)
        return bool(metadata.name == "a")

    listing = await Client(server).list(CSI_NODES, keep=keep, tolerant=True)
    assert ([o.key for o in listing.items], listing.others, asked) == (["a"], 1, ["a", "b"])
    [found] = listing.unreadable
    assert str(found.error) == "csinodes x: cannot be read: metadata.labels: Expected `object`, got `int`"


async def test_a_bookmark_that_cannot_be_read_changes_nothing() -> None:
    server = Scripted(good("a"))
    async with mirrored(server, CSI_NODES) as informer:
        server.send("BOOKMARK", b'{"metadata": {"resourceVersion": 7}}')
        server.send("BOOKMARK", b'{"metadata": {"resourceVersion": "20", "labels": null}, "spec": null}')
        async with asyncio.timeout(LIMIT):
            while informer.version != "20":
                await asyncio.sleep(0)
        assert [o.key for o in informer.cache] == ["a"]


async def test_the_answer_to_a_write_that_cannot_be_read_names_the_object() -> None:
    class Answering(Scripted):
        async def request(self, request: Request) -> Response:
            return Response(200, b'{"metadata": {"name": "n1"}, "spec": {"taints": [{"key": []}]}}')

    client = Client(Answering())
    for call in (client.create(NODES, {}), client.patch(NODES, "n1", {}), client.get(NODES, "n1")):
        with pytest.raises(ApiUnreadableError, match=r"^nodes n1: cannot be read: spec.taints\[0\].key: Expected"):
            await call


async def test_namespaces_are_named() -> None:
    obj = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [{"env": [{"name": 1}]}]}}
    with pytest.raises(
        ApiUnreadableError, match=r"^pods ns/p: cannot be read: spec.containers\[0\].env\[0\].name: Expected"
    ):
        await Client(Scripted(obj)).list(PODS)


async def test_a_handler_that_cannot_stand_an_object_ends_no_informer(caplog: pytest.LogCaptureFixture) -> None:
    server = Scripted(good("odd"), good("a"))
    informers = Informers(Client(server))
    informer = informers.of(CSI_NODES)
    told: list[str] = []

    def picky(old: CSINode | None, new: CSINode | None) -> None:
        if new is not None and new.key == "odd":
            raise KeyError("what no list has")

    informer.cache.on_change(picky)
    informer.cache.on_change(lambda old, new: told.append(new.key if new else "gone"))
    informers.start()
    server.send("MODIFIED", good("odd", 6))
    server.send("ADDED", good("b", 7))
    await until(informer, odd=6, a=5, b=7)
    assert told == ["odd", "a", "odd", "b"]
    assert "change not handled kind=csinodes" in caplog.text
    await informers.close()
