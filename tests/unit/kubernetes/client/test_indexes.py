"""Indexes of claims, volumes and pods."""

from __future__ import annotations

from typing import Any

import msgspec

from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.client import indexes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer


def _claim(name: str, spec: dict[str, Any]) -> PersistentVolumeClaim:
    return CLAIMS.decode(msgspec.json.encode({"metadata": {"name": name, "namespace": "n"}, "spec": spec}))


def _volume(name: str, phase: str, **spec: Any) -> bytes:
    return msgspec.json.encode({"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}})


async def test_claims_by_volume_and_unbound_ones_by_class(server: ApiServer) -> None:
    cache = indexes.claims(Informers(Client(server.transport()))).cache
    for name, spec in {"a": {"storageClassName": "c"}, "b": {"volumeName": "pv", "storageClassName": "c"}}.items():
        cache.put(_claim(name, spec))
    assert [claim.key for claim in cache.by(indexes.CLAIMS_BY_VOLUME, "pv")] == ["n/b"]
    assert "n/a" in {claim.key for claim in cache.by(indexes.CLAIMS_UNBOUND, "c")}
    assert cache.by(indexes.CLAIMS_UNBOUND, "other") == []


async def test_the_volumes_that_may_match_a_claim(server: ApiServer) -> None:
    cache = indexes.volumes(Informers(Client(server.transport()))).cache
    reference = {"namespace": "n", "name": "a"}
    for text in (
        _volume("free", "Available", storageClassName="c"),
        _volume("other", "Available", storageClassName="d"),
        _volume("ours", "Bound", storageClassName="x", claimRef=reference),
        _volume("released", "Released", storageClassName="c"),
    ):
        cache.put(VOLUMES.decode(text))
    found = indexes.candidates(cache, _claim("a", {"storageClassName": "c"}))
    assert sorted(volume.metadata.name for volume in found) == ["free", "ours"]


async def test_pods_by_claim(server: ApiServer) -> None:
    cache = indexes.pods_by_claim(Informers(Client(server.transport()))).cache
    spec = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]}
    cache.put(PODS.decode(msgspec.json.encode({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})))
    assert [pod.key for pod in cache.by(indexes.PODS_BY_CLAIM, "n/a")] == ["n/p"]
