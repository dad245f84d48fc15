"""The informer mirrors what the server has, whatever happens to its watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tonnage.base.errors import ApiGoneError, UnavailableError
from tonnage.kubernetes.api.core import ConfigMap
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informer, Informers, RewoundError
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage_box.apiserver.server.server import ApiServer


class Shaky:
    """A transport whose connections break: each watch after some chunks, each third request at once."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.requests = 0
        self.lists = 0
        self.broken = False

    async def request(self, request: Request) -> Response:
        self.requests += 1
        self.lists += request.method == "GET" and request.query.get("limit") != "1"  # one is asked for the version
        if self.broken or self.requests % 3 == 0:
            raise UnavailableError("the line is dead")
        return await self.inner.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self.inner.stream(request) as chunks:
            yield self._some(chunks)

    async def _some(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in chunks:
            yield chunk[: len(chunk) // 2]
            yield chunk[len(chunk) // 2 :]
            count += 1
            if count == 2:
                raise UnavailableError("cut off")

    async def close(self) -> None:
        await self.inner.close()


async def settle(informer: Informer, names: set[str]) -> None:  # type: ignore[type-arg]
    async with asyncio.timeout(60):
        while {o.metadata.name for o in informer.cache} != names:
            await asyncio.sleep(0.01)


async def test_mirrors_through_lost_connections(server: ApiServer) -> None:
    client = Client(server.transport())
    shaky = Shaky(server.transport())
    informers = Informers(Client(shaky))
    informer = informers.of(CONFIG_MAPS, namespace="default")
    heard: list[str] = []

    def hear(old: ConfigMap | None, new: ConfigMap | None) -> None:
        if old is None or new is None:
            heard.append(f"+{new.key}" if new else f"-{old.key}" if old else "?")

    informer.cache.on_change(hear)
    informers.start()
    await informer.wait_synced()

    for n in range(20):
        await client.create(CONFIG_MAPS, {"metadata": {"name": f"c{n}"}}, "default")
        if n % 2:
            await client.delete(CONFIG_MAPS, f"c{n - 1}", "default")
    await settle(informer, {f"c{n}" for n in range(1, 20, 2)})

    assert sorted(h for h in heard if h.startswith("-")) == sorted(f"-default/c{n}" for n in range(0, 20, 2))
    assert len(heard) == len(set(heard))  # nothing twice, though every watch broke
    assert shaky.lists <= 3  # it resumed where it was instead of listing anew
    await informers.close()


async def test_lists_again_when_its_version_is_too_old(server: ApiServer) -> None:
    client = Client(server.transport())
    informers = Informers(client)
    informer = informers.of(CONFIG_MAPS, namespace="default")
    informer._version = "1"  # as after a long sleep: the history begins later
    await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
    history = server.store._histories["configmaps"]
    history.floor = server.store.revision
    informers.start()

    await settle(informer, {"a"})

    assert informer.synced
    await informers.close()


async def test_informers_are_shared_and_late_ones_start_at_once(server: ApiServer) -> None:
    informers = Informers(Client(server.transport()))
    informers.start()

    one = informers.of(CONFIG_MAPS, namespace="default")

    assert informers.of(CONFIG_MAPS, namespace="default") is one
    assert informers.of(CONFIG_MAPS) is not one
    await informers.wait_synced()
    assert one.synced
    await informers.close()


class Ending:
    """A server that is stopping: every watch ends at once."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.watches = 0

    async def request(self, request: Request) -> Response:
        return await self.inner.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        self.watches += 1
        yield self._nothing()

    async def _nothing(self) -> AsyncIterator[bytes]:
        none: list[bytes] = []
        for chunk in none:
            yield chunk

    async def close(self) -> None:
        await self.inner.close()


async def test_watches_that_end_at_once_are_not_repeated_without_rest(server: ApiServer) -> None:
    ending = Ending(server.transport())
    informers = Informers(Client(ending))
    informers.of(CONFIG_MAPS)
    informers.start()
    await informers.wait_synced()

    await asyncio.sleep(0.5)

    assert 1 <= ending.watches <= 6
    await informers.close()


async def test_the_scope_changes_while_it_runs_and_the_cache_by_what_differs(server: ApiServer) -> None:
    client = Client(server.transport())
    for name, team in (("a", "red"), ("b", "blue"), ("c", "blue")):
        body = {"metadata": {"name": name, "labels": {"team": team}, "annotations": {"for": name}}}
        await client.create(CONFIG_MAPS, body, "default")
    informers = Informers(client)
    informer = informers.of(CONFIG_MAPS, namespace="default", labels="team=blue")
    informer.mine = lambda metadata: metadata.labels.get("team") == "blue"
    heard: list[tuple[str, bool]] = []
    informer.cache.on_change(lambda old, new: heard.append(((old or new).metadata.name, new is not None)))  # type: ignore[union-attr]
    informers.start()
    await settle(informer, {"b", "c"})
    assert informer.others == 0
    heard.clear()

    informer.rescope(keep=lambda metadata: metadata.annotations.get("for") in ("a", "b"))
    await settle(informer, {"a", "b"})

    assert sorted(heard) == [("a", True), ("c", False)]
    assert informer.others == 2  # "a", and "c", which was not kept
    heard.clear()
    await client.patch(CONFIG_MAPS, "c", {"metadata": {"annotations": {"for": "a"}}}, "default")
    await settle(informer, {"a", "b", "c"})
    await client.patch(CONFIG_MAPS, "b", {"metadata": {"annotations": {"for": "z"}}}, "default")
    await settle(informer, {"a", "c"})
    assert heard == [("c", True), ("b", False)]

    informer.rescope(labels="team=blue")
    await settle(informer, {"b", "c"})
    await informers.close()


async def test_what_is_not_kept_is_read_no_further_than_its_metadata(server: ApiServer) -> None:
    client = Client(server.transport())
    await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}, "default")

    listing = await client.list(CONFIG_MAPS, "default", keep=lambda metadata: metadata.name != "a")
    assert (listing.items, listing.others) == ([], 1)

    await client.create(CONFIG_MAPS, {"metadata": {"name": "b"}, "data": {"k": "v"}}, "default")
    async with client.watch(
        CONFIG_MAPS, "default", resource_version=listing.resource_version, keep=lambda metadata: False
    ) as batches:
        async for batch in batches:
            event = batch[0]
            break
    assert (event.type, event.object.metadata.name, event.object.data) == ("OTHER", "b", {})


class Scripted:
    """A server that answers a list with nothing, and each watch with some lines."""

    def __init__(self, *watches: bytes) -> None:
        self.watches = list(watches)
        self.lists = 0

    async def request(self, request: Request) -> Response:
        self.lists += request.query.get("limit") != "1"
        return Response(200, b'{"metadata": {"resourceVersion": "5"}, "items": []}')

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._lines(self.watches.pop(0) if self.watches else b"")

    async def _lines(self, lines: bytes) -> AsyncIterator[bytes]:
        if lines:
            yield lines
        else:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""


def _pod(type_: str, name: str, containers: str) -> bytes:
    meta = f'{{"name": "{name}", "namespace": "default", "resourceVersion": "5", "creationTimestamp": null}}'
    return f'{{"type": "{type_}", "object": {{"metadata": {meta}, "spec": {{"containers": {containers}}}}}}}\n'.encode()


async def test_a_bookmark_of_kube_apiserver_is_no_pod() -> None:
    scripted = Scripted(_pod("BOOKMARK", "", "null") + _pod("ADDED", "p", "[]"))
    informers = Informers(Client(scripted))
    informer = informers.of(PODS)
    informers.start()
    await settle(informer, {"p"})
    assert scripted.lists == 1
    await informers.close()


@pytest.mark.parametrize("garbled", [b'{"type":', b'{"type": 1}\n', b"[" * 100_000 + b"\n", b"\xff\n"])
async def test_an_answer_that_is_no_event_is_watched_anew(garbled: bytes, caplog: pytest.LogCaptureFixture) -> None:
    scripted = Scripted(garbled + b"\n", _pod("ADDED", "good", "[]"))
    informers = Informers(Client(scripted))
    informer = informers.of(PODS)
    informers.start()
    await settle(informer, {"good"})
    assert scripted.lists == 2
    assert "pods: an event cannot be read" in caplog.text
    await informers.close()


class Restored:
    """A server that dies during the first watch and comes back with what it had before, or has by now.

    how: it breaks the watch, ends it as on any other day, or breaks it and answers the next that its version is too old.
    """

    def __init__(self, before: int = 100, after: int = 40, how: str = "broken") -> None:
        self.version, self.lists, self.reads, self.watched = before, 0, 0, list[str]()
        self._after, self._how, self.taken = after, how, 0

    async def request(self, request: Request) -> Response:
        is_list = request.query.get("limit") != "1"
        self.lists += is_list
        self.reads += not is_list
        return Response(200, f'{{"metadata": {{"resourceVersion": "{self.version}"}}, "items": []}}'.encode())

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        self.watched.append(request.query["resourceVersion"])
        yield self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        self.taken += 1
        if self.taken == 1:
            self.version = self._after
            if self._how == "ended":
                return
            raise UnavailableError("gone")
        if self.taken == 2:
            if self._how == "too old":
                raise ApiGoneError("too old resource version")
            if self._how == "ended":
                yield _STRANGE
            raise UnavailableError("gone again, but with all that it had")
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        """Nothing is open."""


_STRANGE = (
    b"""{"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1", "metadata":
 {"name": "strange", "namespace": "default", "uid": "u", "resourceVersion": "200"}}}""".replace(b"\n", b"")
    + b"\n"
)


async def test_a_server_that_went_back_is_listed_again_and_a_lost_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    restored = Restored()
    informers = Informers(Client(restored))
    answers = list[int]()
    rewound = asyncio.ensure_future(informers.end_when_rewound())
    informer = informers.of(PODS)
    informer.on_restored(lambda: answers.append(len(restored.watched)))
    informers.start()

    async with asyncio.timeout(60):
        while restored.taken < 3 or len(answers) < 2:
            await asyncio.sleep(0.01)

    assert restored.watched == ["100", "100", "40", "40"]
    assert restored.lists == 2
    with pytest.raises(RewoundError):
        await rewound
    assert answers == [2, 4]
    assert caplog.text.count("API server went back") == 1
    await informers.close()


class RestoredAtOnce(Restored):
    """It goes back after the first list and before its watch begins, which gets no events then."""

    async def request(self, request: Request) -> Response:
        response = await super().request(request)
        self.version = self._after
        return response

    async def _lines(self) -> AsyncIterator[bytes]:
        self.taken += 1
        await asyncio.Event().wait()
        yield b""


async def test_a_server_that_goes_back_between_a_list_and_its_watch_is_listed_again() -> None:
    restored = RestoredAtOnce()
    informers = Informers(Client(restored))
    rewound = asyncio.ensure_future(informers.end_when_rewound())
    informer = informers.of(PODS)
    informers.start()
    async with asyncio.timeout(60):
        while restored.taken < 1:
            await asyncio.sleep(0.01)
    assert (restored.watched, informer.version, restored.lists, restored.reads) == (["100", "40"], "40", 2, 2)
    with pytest.raises(RewoundError):
        await rewound
    await informers.close()


@pytest.mark.parametrize(
    ("how", "same", "watched"),
    [
        ("broken", True, ["100", "100", "100"]),
        ("ended", True, ["100", "100", "200"]),
        ("too old", True, ["100", "100", "200"]),
        ("broken", False, ["100", "100", "200", "200", "200"]),
        ("ended", False, ["100", "100", "200", "200", "200"]),
        ("too old", False, ["100", "100", "200", "200"]),
    ],
)
async def test_another_history_is_listed_though_its_version_has_passed_the_one_seen_last(
    how: str, watched: list[str], *, same: bool
) -> None:
    """It is seen before any event of it is taken, at the cost of two reads for each watch; of one for the first."""
    restored, asked = Restored(before=100, after=200, how=how), 0

    async def continues() -> bool:
        nonlocal asked
        asked += 1
        return same

    informers = Informers(Client(restored), continues)
    rewound = asyncio.ensure_future(informers.end_when_rewound())
    taken = list[int]()
    informers.of(PODS).cache.on_change(lambda *_: taken.append(asked))
    informers.start()
    async with asyncio.timeout(5):
        while restored.taken < 3:
            await asyncio.sleep(0.01)
    assert restored.watched == watched
    assert asked <= len(watched) - 1
    assert restored.reads <= len(watched) + restored.lists - 1
    assert not taken or min(taken) >= 1
    assert rewound.done() is not same
    rewound.cancel()
    await asyncio.gather(rewound, return_exceptions=True)
    await informers.close()


async def test_a_kind_that_the_server_does_not_have_keeps_nobody_waiting(server: ApiServer) -> None:
    """It is asked for again each minute, quietly, and found when it is there."""
    line = _Without(server.transport(), "/configmaps")
    client = Client(line)
    informers = Informers(client)
    optional, needed = informers.of(CONFIG_MAPS, optional=True), informers.of(PODS)
    optional.absent_seconds = 0.05
    seen: list[str] = []
    optional.cache.on_change(lambda old, new: seen.append(new.metadata.name if new is not None else "gone"))
    informers.start()
    try:
        await informers.wait_synced()
        assert (optional.is_served, needed.is_served) == (False, True)
        assert informers.unsynced() == []
        async with asyncio.timeout(5):
            while line.rejected < 3:
                await asyncio.sleep(0.01)
        await Client(server.transport()).create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
        line.status = 0
        await settle(optional, {"a"})
        assert optional.is_served
        assert seen == ["a"]
        line.status = 404  # and taken away again, as by a downgrade
        optional.rescope()
        await settle(optional, set())
        assert not optional.is_served
    finally:
        await informers.close()


class _Without:
    """A transport to a server without some path."""

    def __init__(self, inner: Transport, path: str) -> None:
        self._inner, self._path = inner, path
        self.status, self.rejected = 404, 0

    async def request(self, request: Request) -> Response:
        if self.status and request.path.endswith(self._path):
            self.rejected += 1
            body = b'{"kind":"Status","apiVersion":"v1","reason":"NotFound","code":404,"message":"no such resource"}'
            return Response(self.status, body)
        return await self._inner.request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()
