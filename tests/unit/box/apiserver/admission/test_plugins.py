"""What admission does to objects on their way in, through the server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config

from tonnage.base.aio.clock import RealClock
from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import ApiError
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.request.user import ADMIN
from tonnage_box.apiserver.storage.store import ObjectKey

Obj = dict[str, Any]
CORE = "/api/v1/namespaces/default"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


NAMESPACED = [key for key, row in RESOURCES.items() if row.kind.namespaced and "get" in row.verbs]


def created(api: Api, key: str, namespace: str) -> AdmissionContext:
    """What admission of a new object of a kind reads."""

    async def used(namespace: str) -> dict[str, int]:
        return {}

    store, now = api.server.store, "2026-01-01T00:00:00Z"
    named = ObjectKey(RESOURCES[key].collection, namespace, "x")
    access = ApiAccess(store, RealClock())
    return AdmissionContext(store, KeyedLocks(), used, "CREATE", named, "", ADMIN, now, access)


def claim(name: str = "c", size: str = "1Gi", **spec: Any) -> Obj:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    return {"metadata": {"name": name}, "spec": wanted}


def pod(name: str = "p", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def storage_class(name: str, *, default: str | None = None, **fields: Any) -> Obj:
    annotations = {} if default is None else {"storageclass.kubernetes.io/is-default-class": default}
    return {"metadata": {"name": name, "annotations": annotations}, "provisioner": "csi.tonnage.dev", **fields}


def body_of(key: str) -> Obj:
    """A new object of a kind, as far as admission reads it."""
    usual = {"metadata": {"name": "x"}, "spec": {"type": "ClusterIP"}}
    return {"pods": pod("x"), "persistentvolumeclaims": claim("x")}.get(key, usual)


async def test_a_claim_is_protected_from_the_start(api: Api) -> None:
    made = await api.create(f"{CORE}/persistentvolumeclaims", claim())
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert made["status"] == {"phase": "Pending"}
    assert made["spec"]["volumeMode"] == "Filesystem"


async def test_a_volume_is_protected_and_keeps_its_own_finalizers(api: Api) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1024Mi"},
        "csi": {"driver": "d", "volumeHandle": "h"},
    }
    made = await api.create(
        "/api/v1/persistentvolumes", {"metadata": {"name": "v", "finalizers": ["a.b/c"]}, "spec": spec}
    )
    assert made["metadata"]["finalizers"] == ["a.b/c", "kubernetes.io/pv-protection"]
    assert made["spec"]["capacity"] == {"storage": "1Gi"}
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


class TestDefaultClass:
    async def test_is_filled_in(self, api: Api) -> None:
        await api.create(CLASSES, storage_class("slow"))
        await api.create(CLASSES, storage_class("fast", default="true"))
        made = await api.create(f"{CORE}/persistentvolumeclaims", claim())
        assert made["spec"]["storageClassName"] == "fast"

    async def test_is_not_forced_on_a_claim_that_wants_none(self, api: Api) -> None:
        await api.create(CLASSES, storage_class("fast", default="true"))
        made = await api.create(f"{CORE}/persistentvolumeclaims", claim(storageClassName=""))
        assert made["spec"]["storageClassName"] == ""

    @pytest.mark.parametrize(
        ("classes", "chosen"),
        [
            pytest.param([], None, id="none"),
            pytest.param([("a", "2026-01-01T00:00:00Z", "false")], None, id="none marked"),
            pytest.param(
                [("a", "2026-01-01T00:00:00Z", "true"), ("b", "2026-01-02T00:00:00Z", "true")], "b", id="the newest"
            ),
            pytest.param(
                [("b", "2026-01-01T00:00:00Z", "true"), ("a", "2026-01-01T00:00:00Z", "true")], "a", id="then by name"
            ),
        ],
    )
    async def test_of_several(self, api: Api, classes: list[tuple[str, str, str]], chosen: str | None) -> None:
        for name, created, default in classes:
            row = storage_class(name, default=default)
            row["metadata"]["creationTimestamp"] = created
            await api.server.store.put(ObjectKey("storage.k8s.io/storageclasses", "", name), row, 0)
        made = await api.create(f"{CORE}/persistentvolumeclaims", claim())
        assert made["spec"].get("storageClassName") == chosen

    async def test_a_class_that_cannot_be_read_stops_no_claim(self, api: Api) -> None:
        """Whoever wrote it: it may be in state.db already."""
        await api.create(CLASSES, storage_class("fast", default="true"))
        bad = storage_class("bad", parameters=["no map"])
        await api.server.store.put(ObjectKey("storage.k8s.io/storageclasses", "", "bad"), bad, 0)
        made = await api.create(f"{CORE}/persistentvolumeclaims", claim())
        assert made["spec"]["storageClassName"] == "fast"


class TestNamespace:
    async def test_must_exist(self, api: Api) -> None:
        status = await api.create("/api/v1/namespaces/nowhere/pods", pod(), want=404)
        assert status["message"] == 'namespaces "nowhere" not found'
        assert status["details"] == {"name": "nowhere", "kind": "namespaces"}

    async def test_must_not_be_going(self, api: Api) -> None:
        await api.create("/api/v1/namespaces", {"metadata": {"name": "ns"}})
        await api.delete("/api/v1/namespaces/ns")
        status = await api.create("/api/v1/namespaces/ns/pods", pod(), want=403)
        assert status["message"] == (
            'pods "p" is forbidden: unable to create new content in namespace ns because it is being terminated'
        )
        assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"

    @pytest.mark.parametrize("key", NAMESPACED)
    async def test_is_checked_for_every_kind(self, api: Api, key: str) -> None:
        going = {"metadata": {"name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        await api.server.store.put(ObjectKey("namespaces", "", "going"), going, 0)
        for namespace, why in (("nowhere", "not found"), ("going", "is being terminated")):
            with pytest.raises(ApiError, match=why):
                await RESOURCES[key].admit(created(api, key, namespace), body_of(key), None)

    async def test_default_stays(self, api: Api) -> None:
        status = await api.delete("/api/v1/namespaces/default", want=403)
        assert status["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'


@pytest.mark.parametrize("key", NAMESPACED)
async def test_a_quota_counts_every_kind(api: Api, key: str) -> None:
    group, _, plural = RESOURCES[key].collection.rpartition("/")
    hard = {"hard": {f"count/{plural}.{group}" if group else f"count/{plural}": "0"}}
    quota = {"metadata": {"name": "none", "namespace": "default"}, "spec": hard, "status": hard}
    await api.server.store.put(ObjectKey("resourcequotas", "default", "none"), quota, 0)
    with pytest.raises(ApiError, match="exceeded quota: none"):
        await RESOURCES[key].admit(created(api, key, "default"), body_of(key), None)


class TestPod:
    async def test_gets_account_priority_and_tolerations(self, api: Api) -> None:
        spec = (await api.create(f"{CORE}/pods", pod()))["spec"]
        assert (spec["serviceAccountName"], spec["priority"]) == ("default", 0)
        assert spec["tolerations"] == [
            {
                "key": f"node.kubernetes.io/{word}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for word in ("not-ready", "unreachable")
        ]

    async def test_keeps_tolerations_of_its_own(self, api: Api) -> None:
        mine = {"operator": "Exists"}
        made = await api.create(f"{CORE}/pods", pod(tolerations=[mine]))
        assert made["spec"]["tolerations"] == [mine]

    async def test_needs_the_account_it_names(self, api: Api) -> None:
        status = await api.create(f"{CORE}/pods", pod(serviceAccountName="bob"), want=403)
        assert status["message"] == (
            'pods "p" is forbidden: error looking up service account default/bob: serviceaccount "bob" not found'
        )
        await api.create(f"{CORE}/serviceaccounts", {"metadata": {"name": "bob"}})
        await api.create(f"{CORE}/pods", pod(serviceAccountName="bob"))

    async def test_needs_a_priority_class_that_there_is(self, api: Api) -> None:
        status = await api.create(f"{CORE}/pods", pod(priorityClassName="high"), want=403)
        assert status["message"] == 'pods "p" is forbidden: no PriorityClass with name high was found'

    @pytest.mark.parametrize(
        ("requests", "limits", "quality"),
        [
            pytest.param({}, {}, "BestEffort", id="nothing"),
            pytest.param({"cpu": "1"}, {}, "Burstable", id="requests"),
            pytest.param({}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed", id="limits"),
            pytest.param({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}, "Burstable", id="less than limits"),
        ],
    )
    async def test_has_a_quality_of_service(self, api: Api, requests: Obj, limits: Obj, quality: str) -> None:
        wanted = pod()
        wanted["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": limits}
        made = await api.create(f"{CORE}/pods", wanted)
        assert made["status"] == {"phase": "Pending", "qosClass": quality}


class TestGrowth:
    async def grown(self, api: Api, *, bound: bool, allowed: bool) -> Obj:
        await api.create(CLASSES, storage_class("fast", allowVolumeExpansion=allowed))
        path = f"{CORE}/persistentvolumeclaims"
        await api.create(path, claim(storageClassName="fast"))
        if bound:
            await api.patch(f"{path}/c/status", {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
        want = 200 if bound and allowed else 403 if bound else 422
        answer: Obj = await api.patch(f"{path}/c", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, want=want)
        return answer

    async def test_of_a_bound_claim_whose_class_allows_it(self, api: Api) -> None:
        assert (await self.grown(api, bound=True, allowed=True))["spec"]["resources"]["requests"]["storage"] == "2Gi"

    async def test_not_of_a_class_that_does_not(self, api: Api) -> None:
        assert (await self.grown(api, bound=True, allowed=False))["message"] == (
            'persistentvolumeclaims "c" is forbidden: only dynamically provisioned pvc can be resized and the '
            "storageclass that provisions the pvc must support resize"
        )

    async def test_not_of_a_pending_claim(self, api: Api) -> None:
        message = (await self.grown(api, bound=False, allowed=True))["message"]
        assert message.startswith(
            'PersistentVolumeClaim "c" is invalid: spec: Forbidden: spec is immutable after creation'
        )


async def test_creation_needs_the_namespace(api: Api) -> None:
    await api.create("/api/v1/namespaces/nowhere/configmaps", config(), want=404)
