"""The account of a pod, and the volume with its token."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.access.served import Served, served
from tests.unit.box.apiserver.api import Api

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import SERVICE_ACCOUNTS
from tonnage_box.apiserver.admission.account import TOKEN_PATH

__all__ = ["served"]
PATH = "/api/v1/namespaces/default/pods"


async def make(served: Served, **spec: Any) -> Any:
    containers = spec.pop("containers", [{"name": "c", "image": "i"}])
    pod = {"metadata": {"generateName": "p-"}, "spec": {"containers": containers, **spec}}
    status, body = await served.send("POST", PATH, pod)
    assert status == 201, body
    return body["spec"]


async def test_each_container_gets_the_token_of_the_default_account(served: Served) -> None:
    spec = await make(served, initContainers=[{"name": "i", "image": "i"}])
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    (volume,) = spec["volumes"]
    assert volume["name"].startswith(names.TOKEN_VOLUME)
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        "serviceAccountToken",
        "configMap",
        "downwardAPI",
    ]
    for container in spec["containers"] + spec["initContainers"]:
        mount = {"name": volume["name"], "readOnly": True, "mountPath": TOKEN_PATH}
        assert container["volumeMounts"] == [mount]


@pytest.mark.parametrize(
    ("of_pod", "of_account", "mounted"),
    [(None, None, True), (None, False, False), (True, False, True), (False, None, False), (False, True, False)],
)
async def test_pod_and_account_may_decline(
    served: Served, of_pod: bool | None, of_account: bool | None, mounted: bool
) -> None:
    account = {} if of_account is None else {"automountServiceAccountToken": of_account}
    await served.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "a"}, **account}, "default")
    wanted: Any = {} if of_pod is None else {"automountServiceAccountToken": of_pod}
    spec = await make(served, serviceAccountName="a", **wanted)
    assert ("volumes" in spec) is mounted


async def test_what_is_mounted_there_stays(served: Served) -> None:
    mount = {"name": "own", "mountPath": TOKEN_PATH}
    containers = [{"name": "c", "image": "i", "volumeMounts": [mount]}]
    spec = await make(served, containers=containers, volumes=[{"name": "own", "emptyDir": {}}])
    assert [volume["name"] for volume in spec["volumes"]] == ["own"]
    assert spec["containers"][0]["volumeMounts"] == [mount]


async def test_an_account_that_is_not_there_is_rejected(served: Served) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"serviceAccountName": "gone", "containers": [{"name": "c"}]}}
    pod["spec"]["containers"][0]["image"] = "i"  # type: ignore[index]
    status, body = await served.send("POST", PATH, pod)
    assert (status, 'serviceaccount "gone" not found' in body["message"]) == (403, True)


async def test_pull_secrets_of_the_account_are_those_of_its_pods(served: Served) -> None:
    body = {"metadata": {"name": "a"}, "imagePullSecrets": [{"name": "s"}]}
    await served.client.create(SERVICE_ACCOUNTS, body, "default")
    assert (await make(served, serviceAccountName="a"))["imagePullSecrets"] == [{"name": "s"}]
    own = await make(served, serviceAccountName="a", imagePullSecrets=[{"name": "own"}])
    assert own["imagePullSecrets"] == [{"name": "own"}]


async def test_without_tokens_nothing_is_mounted(api: Api) -> None:
    pod = await api.create(PATH, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert "volumes" not in pod["spec"]
