"""Malformed protobuf of every kind against the whole API server: an answer for each, and none is a 500."""

from __future__ import annotations

import random
from collections import Counter

from tests.unit.box.apiserver.protobuf.samples import objects
from tests.unit.box.apiserver.protobuf.test_envelope import damaged

from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.client.transport import JSON, PROTOBUF, Request
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.protobuf import envelope
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing.clock import ManualClock

BODIES = 20_000


async def test_malformed_bodies_of_every_kind_stop_nothing() -> None:
    server = ApiServer(Store(extractor()), clock=ManualClock())
    await server.start()
    transport, rng, answered = server.transport(), random.Random(1), Counter[int]()
    paths = {(row.kind.api_version, row.kind.kind): row.kind.path("default") for row in RESOURCES.values()}
    bodies = [(paths[obj["apiVersion"], obj["kind"]], envelope.encode(obj)) for obj in objects(3, 3)]
    for n in range(BODIES):
        path, body = bodies[n % len(bodies)]
        request = Request("POST", path, {}, damaged(rng, body), PROTOBUF, rng.choice((JSON, PROTOBUF)))
        answer = await transport.request(request)
        answered[answer.status] += 1
        assert answer.status not in (500, 501), (path, request.body, answer.body)
    assert answered[400] > BODIES // 10, answered
    assert sum(answered.values()) == BODIES

    body = envelope.encode(CONFIG_MAPS.head() | {"metadata": {"name": "after"}})
    answer = await transport.request(Request("POST", CONFIG_MAPS.path("default"), {}, body, PROTOBUF))
    assert answer.status == 201
    await server.stop()
