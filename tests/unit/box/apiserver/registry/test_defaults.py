from __future__ import annotations

import copy
from typing import Any

import pytest

from tonnage.box.apiserver.registry import defaults, strategy

Obj = dict[str, Any]
CLAIM = {"kind": "PersistentVolumeClaim", "name": "a"}
SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a"}
FOREIGN = {"apiGroup": "x.y", "kind": "Z", "name": "a"}


def pod(container: Obj | None = None, **spec: Any) -> Obj:
    obj = {"spec": {"containers": [{"name": "c", "image": "i"} | (container or {})], **spec}}
    defaults.pod(obj)
    return obj


def test_a_pod_with_nothing_said() -> None:
    spec = pod()["spec"]
    assert {k: v for k, v in spec.items() if k != "containers"} == {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "securityContext": {},
    }
    assert spec["containers"][0] == {
        "name": "c",
        "image": "i",
        "imagePullPolicy": "Always",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


def test_what_is_said_stays() -> None:
    assert pod(restartPolicy="Never", terminationGracePeriodSeconds=0)["spec"]["terminationGracePeriodSeconds"] == 0


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:abc", "IfNotPresent"),
    ],
)
def test_images_without_a_tag_are_fetched_always(image: str, policy: str) -> None:
    assert pod({"image": image})["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_requests_follow_limits() -> None:
    given = {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}
    resources = pod(given)["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("volume", "filled"),
    [
        pytest.param({"name": "v"}, {"name": "v", "emptyDir": {}}, id="no source is an emptyDir"),
        pytest.param(
            {"name": "v", "secret": {"secretName": "s"}},
            {"name": "v", "secret": {"secretName": "s", "defaultMode": 0o644}},
            id="secret",
        ),
        pytest.param(
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"volumeMode": "Filesystem"}}}},
            id="template of a claim",
        ),
        pytest.param(
            {"name": "v", "hostPath": {"path": "/"}}, {"name": "v", "hostPath": {"path": "/", "type": ""}}, id="path"
        ),
    ],
)
def test_volumes(volume: Obj, filled: Obj) -> None:
    assert pod(volumes=[volume])["spec"]["volumes"] == [filled]


def test_probes() -> None:
    probe = pod({"livenessProbe": {"httpGet": {"port": 80}}})["spec"]["containers"][0]["livenessProbe"]
    assert probe == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def test_defaulting_twice_is_defaulting_once() -> None:
    once = pod(volumes=[{"name": "v"}])
    twice = {"spec": dict(once["spec"])}
    defaults.pod(twice)
    assert twice == once


def test_a_driver_with_nothing_said() -> None:
    driver: Obj = {}
    defaults.csi_driver(driver)
    assert driver["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "storageCapacity": False,
        "requiresRepublish": False,
        "seLinuxMount": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "volumeLifecycleModes": ["Persistent"],
    }


def test_a_namespace_carries_its_name_as_a_label() -> None:
    namespace: Obj = {"metadata": {"name": "ns"}}
    defaults.namespace(namespace)
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "ns"}


def test_limits_of_containers_follow_from_one_another() -> None:
    limits: Obj = {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}}
    defaults.limit_range(limits)
    (item,) = limits["spec"]["limits"]
    assert (item["default"], item["defaultRequest"]) == ({"cpu": "2"}, {"cpu": "2", "memory": "1Mi"})


class TestStrategy:
    def test_a_client_cannot_make_a_pod_that_runs_already(self) -> None:
        new: Obj = {"spec": {}, "status": {"phase": "Running"}}
        strategy.pod(new, None)
        assert new["status"] == {"phase": "Pending", "qosClass": "BestEffort"}

    def test_a_gated_pod_says_that_it_is_not_scheduled(self) -> None:
        new: Obj = {"spec": {"schedulingGates": [{"name": "g"}]}}
        strategy.pod(new, None)
        assert new["status"]["conditions"][0]["reason"] == "SchedulingGated"

    def test_a_claim_cannot_be_made_bound(self) -> None:
        new: Obj = {"spec": {}, "status": {"phase": "Bound"}}
        strategy.claim(new, None)
        assert new["status"] == {"phase": "Pending"}

    @pytest.mark.parametrize(
        ("spec", "source", "ref"),
        [
            pytest.param({"dataSource": CLAIM}, CLAIM, CLAIM, id="source fills ref"),
            pytest.param({"dataSourceRef": CLAIM}, CLAIM, CLAIM, id="ref fills source"),
            pytest.param({"dataSource": SNAPSHOT}, SNAPSHOT, SNAPSHOT, id="snapshot"),
            pytest.param({"dataSourceRef": FOREIGN}, FOREIGN, FOREIGN, id="any kind fills source"),
            pytest.param({"dataSourceRef": {**FOREIGN, "namespace": ""}}, FOREIGN, {**FOREIGN, "namespace": ""}, id='""'),
            pytest.param({"dataSourceRef": {**CLAIM, "namespace": "n"}}, None, {**CLAIM, "namespace": "n"}, id="namespace"),
            pytest.param({"dataSource": FOREIGN}, None, None, id="another kind as source alone is dropped"),
            pytest.param({"dataSource": {**CLAIM, "apiGroup": "x.y"}}, None, None, id="so is another group"),
            pytest.param({"dataSource": FOREIGN, "dataSourceRef": FOREIGN}, FOREIGN, FOREIGN, id="both"),
        ],
    )  # fmt: skip
    def test_data_sources_fill_each_other(self, spec: Obj, source: Obj | None, ref: Obj | None) -> None:
        spec = copy.deepcopy(spec)
        strategy.claim({"spec": spec}, None)
        assert (spec.get("dataSource"), spec.get("dataSourceRef")) == (source, ref)

    @pytest.mark.parametrize(
        ("before", "sent", "after"),
        [
            pytest.param({"dataSource": FOREIGN, "dataSourceRef": FOREIGN}, {"dataSource": FOREIGN}, None, id="old client"),
            pytest.param({"dataSource": CLAIM, "dataSourceRef": CLAIM}, {"dataSourceRef": CLAIM}, None, id="new client"),
            pytest.param({"dataSourceRef": FOREIGN}, {"dataSourceRef": FOREIGN}, None, id="stored with the ref only"),
            pytest.param({}, {"dataSource": FOREIGN}, {}, id="a source that never was"),
            pytest.param({}, {"dataSource": CLAIM}, {"dataSource": CLAIM, "dataSourceRef": CLAIM}, id="to be refused"),
            pytest.param({"dataSource": CLAIM, "dataSourceRef": CLAIM}, {}, {}, id="taken off: to be refused"),
        ],
    )  # fmt: skip
    def test_an_update_that_leaves_one_source_out_changes_nothing(
        self, before: Obj, sent: Obj, after: Obj | None
    ) -> None:
        stored, spec = copy.deepcopy(before), copy.deepcopy(sent)
        strategy.claim({"spec": spec}, {"spec": stored})
        assert spec == (before if after is None else after)
        assert stored == before

    def test_a_namespace_is_held_by_its_controller(self) -> None:
        new: Obj = {"metadata": {"name": "n"}}
        strategy.namespace(new, None)
        assert new["spec"] == {"finalizers": ["kubernetes"]}

    def test_string_data_is_written_never_stored(self) -> None:
        new: Obj = {"data": {"a": "YQ=="}, "stringData": {"a": "b", "c": "d"}}
        strategy.secret(new, None)
        assert new == {"data": {"a": "Yg==", "c": "ZA=="}}
