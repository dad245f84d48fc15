"""Limits of a namespace: defaults are filled in, then held."""

from __future__ import annotations

from typing import Any

from tests.unit.box.apiserver.api import Api

Obj = dict[str, Any]
CORE = "/api/v1/namespaces/default"


def claim(name: str = "c", size: str = "1Gi", **spec: Any) -> Obj:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    return {"metadata": {"name": name}, "spec": wanted}


def pod(name: str = "p", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def test_claims_are_held_to_the_limits_of_their_namespace(api: Api) -> None:
    limits = [{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}}]
    await api.create(f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    path = f"{CORE}/persistentvolumeclaims"
    await api.create(path, claim(size="5Gi"))
    for size, why in (
        ("6Gi", "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"),
        ("512Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"),
    ):
        status = await api.create(path, claim("d", size), want=403)
        assert status["message"] == f'persistentvolumeclaims "d" is forbidden: {why}'


async def test_containers_get_the_defaults_of_their_namespace_and_are_held_to_its_limits(api: Api) -> None:
    limits = [{"type": "Container", "default": {"memory": "1Gi"}, "max": {"memory": "2Gi"}}]
    await api.create(f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    made = await api.create(f"{CORE}/pods", pod())
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    greedy = pod("q")
    greedy["spec"]["containers"][0]["resources"] = {"limits": {"memory": "3Gi"}}
    status = await api.create(f"{CORE}/pods", greedy, want=403)
    assert status["message"] == ('pods "q" is forbidden: maximum memory usage per Container is 2Gi, but request is 3Gi')
