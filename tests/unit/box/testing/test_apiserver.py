"""The API server for tests, used as another project would use it."""

from __future__ import annotations

import pytest

from tonnage.base.errors import ApiConflictError, ApiInvalidError
from tonnage.kubernetes.api import kinds
from tonnage_box.testing.apiserver import api_server, caught_up, client, informers
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.objects import Objects


async def test_it_validates_and_versions_as_kubernetes_does() -> None:
    async with api_server() as server:
        kube = client(server)
        objects = Objects(kube)
        with pytest.raises(ApiInvalidError, match=r"spec\.resources"):
            await objects.claim("data", "0")
        claim = await objects.claim("data", "1Gi")
        stale = {"metadata": {"resourceVersion": claim.metadata.resource_version, "labels": {"a": "b"}}}
        await kube.patch(kinds.CLAIMS, "data", {"metadata": {"labels": {"c": "d"}}}, "default")
        with pytest.raises(ApiConflictError):
            await kube.patch(kinds.CLAIMS, "data", stale, "default")


async def test_creation_times_are_those_of_the_clock() -> None:
    async with api_server(ManualClock(1_800_000_000.0)) as server:
        made = await Objects(client(server)).storage_class("late")
        assert str(made.metadata.creation_timestamp).startswith("2027-01-15T08:00:0")


async def test_caches_have_caught_up_with_what_was_written() -> None:
    async with api_server() as server, informers(client(server)) as found:
        pods = found.of(kinds.PODS)
        for name in ("a", "b", "c"):
            await Objects(client(server)).pod(name)
        await caught_up(client(server), found)
        assert {pod.metadata.name for pod in pods.cache} == {"a", "b", "c"}
