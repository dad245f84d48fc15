"""Options of a query that cannot be."""

from __future__ import annotations

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_unknown_propagation_is_rejected(api: Api) -> None:
    await api.create(MAPS, config())
    await api.delete(f"{MAPS}/x", {"propagationPolicy": "Sideways"}, want=422)
    await api.delete(f"{MAPS}/x", {"propagationPolicy": "Orphan", "orphanDependents": True}, want=422)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "9" * 400},
        {"limit": "-1"},
        {"limit": "٣"},
        {"continue": "9" * 400},
        {"continue": "A" * 60_000},
        {"continue": "é"},
        {"resourceVersion": "9" * 400},
        {"timeoutSeconds": "9" * 400},
        {"labelSelector": "a" + " " * 60_000 + "("},
        {"labelSelector": "a in" + " " * 60_000},
        {"labelSelector": "!" * 60_000},
        {"labelSelector": "a," * 20_000},
        {"fieldSelector": "x" * 60_000},
        {"fieldSelector": "metadata.name!=a," * 3000},
        {"watch": "1" * 60_000},
    ],
)
async def test_odd_queries(api: Api, query: dict[str, str]) -> None:
    answer = await api.get(MAPS, query=query, want=400)
    assert len(answer["message"]) < 1000


async def test_the_largest_numbers_of_a_query(api: Api) -> None:
    assert (await api.get(MAPS, query={"limit": str(2**63 - 1)}))["kind"] == "ConfigMapList"
    assert (await api.get(MAPS, query={"labelSelector": "a>" + "9" * 5000}))["items"] == []
