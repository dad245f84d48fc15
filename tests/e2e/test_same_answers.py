"""The box's API server against the real one: the same requests, the same answers.

Compared are the HTTP status, the object or Status, and the warnings. What differs for a reason is in DIFFERENT by its
case; a difference that is not there any more fails, too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.e2e.control_plane import JSON_PATCH, MERGE_PATCH, Answer, ControlPlane
from tests.e2e.requests import CASES, DIFFERENT, SPACE, Ask

from tonnage.kubernetes.client.transport import JSON, Request
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.since("1.36")]
_OWN = frozenset({"uid", "creationTimestamp", "resourceVersion", "managedFields", "deletionTimestamp"})
"""Fields that every server fills in for itself, whatever the request is."""


@dataclass
class Box:
    """An API server of the box in memory, in a loop of its own."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __post_init__(self) -> None:
        self.server = ApiServer(Store(extractor()))
        self.loop.run_until_complete(self.server.start())
        self.transport = self.server.transport()

    def send(self, ask: Ask) -> Answer:
        """One request."""
        return self.loop.run_until_complete(self._send(ask))

    async def _send(self, ask: Ask) -> Answer:
        path, _, text = ask.path.partition("?")
        query = dict(pair.split("=") for pair in text.split("&") if pair)
        data = b"" if ask.body is None else json.dumps(ask.body).encode()
        answer = await self.transport.request(Request(ask.method, path, query, data, _content_type(ask), JSON))
        given = answer.headers.get("Warning", "")
        return Answer(answer.status, json.loads(answer.body), tuple(re.findall(r'299 - "(?:[^"\\]|\\.)*"', given)))

    def stop(self) -> None:
        """Stop it."""
        self.loop.run_until_complete(self.server.stop())
        self.loop.close()


@dataclass(frozen=True)
class Both:
    """The two servers."""

    plane: ControlPlane
    box: Box

    def real(self, ask: Ask) -> Answer:
        """One request to the real server."""
        return self.plane.send(ask.method, ask.path, ask.body, content_type=_content_type(ask))


def _content_type(ask: Ask) -> str:
    patch = JSON_PATCH if isinstance(ask.body, list) else MERGE_PATCH
    return ask.content_type or (patch if ask.method == "PATCH" else JSON)


@pytest.fixture(scope="module")
def both(control_plane: ControlPlane) -> Iterator[Both]:
    made = Both(control_plane, Box())
    space = Ask("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    assert [made.real(space).status, made.box.send(space).status] == [201, 201]
    account = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
    control_plane.until("the account is there", lambda: control_plane.send("GET", account).status == 200)
    yield made
    made.box.stop()
    control_plane.kubectl("delete", "namespace", SPACE, "--wait=false")
    control_plane.kubectl("delete", "pv,storageclass", "-l", "same=answers", "--wait=false")


def _plain(answer: Answer) -> dict[str, Any]:
    """What is compared of an answer."""
    return {"status": answer.status, "warnings": list(answer.warnings), "body": _without(answer.body)}


def _without(body: Any) -> Any:
    """Without the fields of _OWN and what controllers of the real cluster write meanwhile."""
    if not isinstance(body, Mapping):
        return body
    found: dict[str, Any] = {**body}
    meta = found.get("metadata", {})
    found["metadata"] = {key: "set" if key in _OWN else value for key, value in meta.items() if key != "managedFields"}
    for condition in (found.get("status") or {}).get("conditions", ()) if isinstance(found.get("status"), dict) else ():
        condition["lastTransitionTime"] = "set" if condition["lastTransitionTime"] else None
    if found.get("kind") == "PersistentVolume":  # the PV controller is at once at it
        found.pop("status", None)
    if "details" in found:
        found["details"] = {key: value for key, value in found["details"].items() if key != "uid"}
    return found


def _paths(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ, as "PATH: BOX != REAL"."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            yield from _paths(left.get(key, "(absent)"), right.get(key, "(absent)"), f"{path}.{key}")
    elif left != right:
        yield f"{path}: {json.dumps(left)} != {json.dumps(right)}"


@pytest.mark.parametrize("name", CASES)
def test_the_box_answers_as_kubernetes_does(name: str, both: Both) -> None:
    found: list[str] = []
    for number, ask in enumerate(CASES[name]):
        found += _paths(_plain(both.box.send(ask)), _plain(both.real(ask)), f"{number} {ask.method}")
    if name in DIFFERENT:
        assert found, f"{name} is the same now: take it out of DIFFERENT"
    else:
        assert not found, "\n" + "\n".join(found)


def test_differences_are_of_cases() -> None:
    assert DIFFERENT.keys() <= CASES.keys()
