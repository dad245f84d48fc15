"""What becomes of an event."""

from __future__ import annotations

import asyncio

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import EVENTS
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import Correlator, EventRecorder
from tonnage_box.apiserver.server.server import ApiServer


def test_an_object_has_25_events_at_once_and_then_one_every_five_minutes() -> None:
    correlator = Correlator()

    assert sum(correlator.allow("uid", 0.0) for _ in range(100)) == 25
    assert not correlator.allow("uid", 299.0)
    assert correlator.allow("uid", 301.0)
    assert not correlator.allow("uid", 302.0)
    assert correlator.allow("other", 302.0)


def test_many_similar_events_become_one() -> None:
    correlator = Correlator()

    told = [correlator.message("uid", "Failed", f"try {n}", 0.0) for n in range(12)]

    assert told[:10] == [f"try {n}" for n in range(10)]
    assert told[10].startswith("(combined from similar events): ")
    assert correlator.message("uid", "Failed", "again", 700.0) == "again"


async def test_the_same_event_again_counts_up_on_the_one_that_is_there(server: ApiServer) -> None:
    client = Client(server.transport())
    recorder = EventRecorder(client, "tester", host="node-1")
    about = ObjectReference(api_version="v1", kind="Pod", namespace="default", name="p", uid="u1")
    writing = asyncio.ensure_future(recorder.run())
    for _ in range(3):
        recorder.warning(about, "Failed", "no room")
    recorder.normal(about, "Started", "at last")

    async with asyncio.timeout(60):
        while len(events := (await client.list(EVENTS, "default")).items) < 2:
            await asyncio.sleep(0.01)
    writing.cancel()

    by_reason = {e.reason: e for e in events}
    assert (by_reason["Failed"].count, by_reason["Failed"].type) == (3, "Warning")
    assert by_reason["Started"].source.host == "node-1"
    assert by_reason["Started"].involved_object.uid == "u1"


async def test_events_of_one_second_are_listed_in_their_order(server: ApiServer) -> None:
    client = Client(server.transport())
    about = ObjectReference(api_version="v1", kind="Pod", namespace="default", name="p", uid="u1")
    recorders = [EventRecorder(client, component) for component in ("scheduler", "kubelet")]
    reasons = [f"Reason{n}" for n in range(10)]
    for number, reason in enumerate(reasons):
        recorders[number % 2].normal(about, reason, "done")
    writing = [asyncio.ensure_future(recorder.run()) for recorder in reversed(recorders)]

    async with asyncio.timeout(60):
        while len(events := (await client.list(EVENTS, "default")).items) < len(reasons):
            await asyncio.sleep(0.01)
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)

    assert [e.reason for e in sorted(events, key=lambda e: e.metadata.name)] == reasons


async def test_what_many_find_out_is_told_once(server: ApiServer) -> None:
    client = Client(server.transport())
    about = ObjectReference(api_version="storage.k8s.io/v1", kind="StorageClass", name="late", uid="u1")
    recorders = [EventRecorder(client, "tester", host=f"node-{n}") for n in range(3)]
    writing = [asyncio.ensure_future(recorder.run()) for recorder in recorders]
    for recorder in recorders:
        recorder.warning(about, "InvalidParameters", "no such pool", once="key")
        recorder.warning(about, "InvalidParameters", "no such pool", once="key")
        recorder.normal(about, "Done", "the end")

    events = (await client.list(EVENTS, "default")).items
    async with asyncio.timeout(60):
        while sum(e.count for e in events if e.reason == "Done") < 3:
            await asyncio.sleep(0.001)
            events = (await client.list(EVENTS, "default")).items
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)

    (told,) = [e for e in events if e.reason == "InvalidParameters"]
    assert (told.metadata.name, told.count) == ("late.2c70e12b7a0646f9", 1), "of every process"


async def test_the_name_of_an_event_about_a_long_name_is_valid(server: ApiServer) -> None:
    client = Client(server.transport())
    recorder = EventRecorder(client, "tester")
    about = ObjectReference(api_version="v1", kind="Pod", namespace="default", name="p." * 126 + "p", uid="u1")
    writing = asyncio.ensure_future(recorder.run())
    recorder.warning(about, "Failed", "no room")

    async with asyncio.timeout(60):
        while not (events := (await client.list(EVENTS, "default")).items):
            await asyncio.sleep(0.001)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)

    assert len(events[0].metadata.name) <= 253
    assert events[0].involved_object.name == about.name


class Jumping(RealClock):
    """A machine whose wall clock somebody sets."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        """See Clock."""
        return super().time() + self.ahead


async def test_events_go_on_when_the_clock_is_set_back(server: ApiServer) -> None:
    client, clock = Client(server.transport()), Jumping()
    recorder = EventRecorder(client, "tester", clock=clock)
    about = ObjectReference(api_version="v1", kind="Pod", namespace="default", name="p", uid="u1")
    writing = asyncio.ensure_future(recorder.run())
    for ahead in (0.0, -24 * 3600.0, 3600.0):
        clock.ahead = ahead
        recorder.normal(about, f"At{ahead:.0f}", "told")

    async with asyncio.timeout(60):
        while len(events := (await client.list(EVENTS, "default")).items) < 3:
            await asyncio.sleep(0.01)
    writing.cancel()
    assert {e.reason for e in events} == {"At0", "At-86400", "At3600"}
