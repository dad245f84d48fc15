"""The client's requests against a real API server, over both transports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tonnage.base.errors import (
    ApiAlreadyExistsError,
    ApiConflictError,
    ApiError,
    ApiInvalidError,
    ApiNotFoundError,
    UnavailableError,
)
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NAMESPACES, NODES
from tonnage.kubernetes.api.meta import ObjectMeta, to_builtins
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.http import HttpTransport
from tonnage_box.api.wait import until, until_gone
from tonnage_box.apiserver.server.server import ApiServer


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"made": "here"}}, "data": data}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../../kube-system/configmaps/a", "a/status", "a%2Fb", ".", ".."])
async def test_a_name_that_leads_elsewhere_is_no_objects(client: Client, name: str) -> None:
    """Names come out of annotations and references, which anybody may write."""
    await client.create(CONFIG_MAPS, config_map("a"), "default")
    with pytest.raises(ApiNotFoundError, match="no object can have this name"):
        await client.get(CONFIG_MAPS, name, "default")
    with pytest.raises(ApiNotFoundError, match="no object can have this name"):
        await client.patch(CONFIG_MAPS, name, {"data": {"x": "1"}}, "default")


async def test_life_of_an_object(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a", x="1"), "default")
    assert made.metadata.uid
    assert (await client.get(CONFIG_MAPS, "a", "default")).data == {"x": "1"}

    patched = await client.patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}}, "default")
    assert patched.data == {"y": "2"}
    patched = await client.patch(CONFIG_MAPS, "a", [{"op": "add", "path": "/data/z", "value": "3"}], "default")
    assert patched.data == {"y": "2", "z": "3"}

    await client.delete(CONFIG_MAPS, "a", "default", uid=made.metadata.uid)
    with pytest.raises(ApiNotFoundError, match='configmaps "a" not found'):
        await client.get(CONFIG_MAPS, "a", "default")


async def test_rejections_are_the_errors_they_are(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a"), "default")
    await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default")

    with pytest.raises(ApiAlreadyExistsError):
        await client.create(CONFIG_MAPS, config_map("a"), "default")
    version = made.metadata.resource_version
    with pytest.raises(ApiConflictError):
        await client.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, "default", resource_version=version)
    with pytest.raises(ApiConflictError):
        await client.delete(CONFIG_MAPS, "a", "default", uid="other")
    with pytest.raises(ApiInvalidError) as rejected:
        await client.create(CONFIG_MAPS, config_map("Not A Name"), "default")
    assert [cause.field for cause in rejected.value.causes] == ["metadata.name"]
    with pytest.raises(ApiError) as rejected_kind:
        await client.read("/apis/nobody.example/v1/things")
    assert rejected_kind.value.code == 404


async def test_list_goes_through_all_pages_and_selects(client: Client) -> None:
    client.page = 3
    for n in range(8):
        await client.create(CONFIG_MAPS, config_map(f"c{n}", n=str(n)), "default")

    assert {c.metadata.name for c in (await client.list(CONFIG_MAPS, labels="made=here")).items} == {
        f"c{n}" for n in range(8)
    }
    one = await client.list(CONFIG_MAPS, "default", fields="metadata.name=c5")
    assert [c.metadata.name for c in one.items] == ["c5"]


async def test_watch_shows_what_happens_in_order(client: Client) -> None:
    version = (await client.list(CONFIG_MAPS, "default")).resource_version
    seen = []
    async with client.watch(CONFIG_MAPS, "default", resource_version=version, labels="made=here") as batches:
        await client.create(CONFIG_MAPS, config_map("a"), "default")
        await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default")
        await client.delete(CONFIG_MAPS, "a", "default")
        async for batch in batches:
            seen += [e.type for e in batch if e.type != "BOOKMARK"]
            if "DELETED" in seen:
                break

    assert seen == ["ADDED", "MODIFIED", "DELETED"]


async def test_waiting_for_objects(client: Client) -> None:
    async def later() -> None:
        await client.create(CONFIG_MAPS, config_map("a"), "default")
        await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default")
        await client.delete(CONFIG_MAPS, "a", "default")

    async with asyncio.TaskGroup() as tasks:
        found = tasks.create_task(until(client, CONFIG_MAPS, "a", lambda c: "x" in c.data, namespace="default"))
        await asyncio.sleep(0.05)
        tasks.create_task(later())

    assert found.result().data == {"x": "1"}
    await until_gone(client, CONFIG_MAPS, namespace="default", seconds=5)
    with pytest.raises(TimeoutError, match="ConfigMap b was not there"):
        await until(client, CONFIG_MAPS, "b", lambda c: True, namespace="default", seconds=0.05)


async def test_without_a_server_it_says_which(server: ApiServer, tmp_path: Path) -> None:
    client = Client(HttpTransport(kubeconfig.load(tmp_path / "kubeconfig")))
    url = server.url
    await client.list(NAMESPACES)
    await server.stop()

    with pytest.raises(UnavailableError, match=url):
        await client.list(NAMESPACES)
    await client.close()


async def test_a_wrong_token_is_rejected(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    assert server.credentials is not None
    file.write_text(file.read_text().replace(server.credentials.token, "guess"))
    client = Client(HttpTransport(kubeconfig.load(file)))

    with pytest.raises(ApiError) as rejected:
        await client.list(NAMESPACES)

    assert rejected.value.code == 401
    await client.close()


def test_a_reference_points_to_the_object() -> None:
    meta = ObjectMeta(name="a", namespace="n", uid="u", resource_version="3")
    found = refer(NODES, Node(metadata=meta))
    assert to_builtins(found) == {
        "apiVersion": "v1",
        "kind": "Node",
        "namespace": "n",
        "name": "a",
        "uid": "u",
        "resourceVersion": "3",
    }
