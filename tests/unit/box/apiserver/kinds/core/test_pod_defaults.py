from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.kinds.core import pod_defaults as defaults

Obj = dict[str, Any]


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
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"volumeMode": "Filesystem"}}}},
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
