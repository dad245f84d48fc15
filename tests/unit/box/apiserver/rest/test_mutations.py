"""Whatever a client sends, the answer is never "an error on the server", and lists can always be shown."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import JSON, MERGE_PATCH, STRATEGIC_PATCH

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
HERE = "/namespaces/default"
KINDS = {kind.plural: kind for kind in kinds.ALL}
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}
CLAIM = {
    "accessModes": ["ReadWriteOnce"],
    "storageClassName": "fast",
    "selector": {"matchLabels": {"a": "b"}},
    "resources": {"requests": {"storage": "1Gi"}},
}
POD = {
    "nodeName": "n",
    "containers": [
        {
            "name": "c",
            "image": "i",
            "env": [{"name": "A", "value": "b"}],
            "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"name": "v", "mountPath": "/x"}],
        }
    ],
    "volumes": [
        {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}},
        {"name": "w", "csi": {"driver": "x.y", "volumeAttributes": {"size": "1Gi"}}},
    ],
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
}
RUNNING = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "c", "ready": True, "restartCount": 1, "image": "i", "imageID": "x", "state": {}}],
}
VOLUME = {
    "capacity": {"storage": "1Gi"},
    "accessModes": ["ReadWriteOnce"],
    "csi": {"driver": "x.y", "volumeHandle": "h"},
    "claimRef": {"namespace": "default", "name": "a", "uid": "u"},
    "nodeAffinity": {"required": TERMS},
}
READY = {
    "capacity": {"cpu": "4"},
    "conditions": [{"type": "Ready", "status": "True"}],
    "addresses": [{"type": "InternalIP"}],
}
REGARDING = {"kind": "Pod", "name": "p", "namespace": "default"}
OBJECTS: dict[str, dict[str, Any]] = {
    f"/api/v1{HERE}/pods": {"spec": POD, "status": RUNNING},
    f"/api/v1{HERE}/persistentvolumeclaims": {
        "spec": CLAIM,
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    },
    "/api/v1/persistentvolumes": {"spec": VOLUME, "status": {"phase": "Bound"}},
    "/api/v1/nodes": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": READY},
    f"/api/v1{HERE}/resourcequotas": {"spec": {"hard": {"requests.storage": "10Gi"}}},
    f"/api/v1{HERE}/limitranges": {"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Ti"}}]}},
    f"/api/v1{HERE}/events": {"involvedObject": REGARDING, "reason": "r", "message": "m", "type": "Normal", "count": 1},
    "/apis/storage.k8s.io/v1/storageclasses": {"provisioner": "x.y", "parameters": {"a": "b"}},
    "/apis/storage.k8s.io/v1/csidrivers": {"spec": {"attachRequired": False, "volumeLifecycleModes": ["Persistent"]}},
    "/apis/storage.k8s.io/v1/csinodes": {
        "spec": {"drivers": [{"name": "x.y", "nodeID": "n", "topologyKeys": ["a/b"]}]}
    },
    f"/apis/storage.k8s.io/v1{HERE}/csistoragecapacities": {"storageClassName": "fast", "capacity": "1Gi"},
    f"/apis/coordination.k8s.io/v1{HERE}/leases": {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 15}},
}
LABELS = {"matchLabels": {"a": "b"}}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always"},
}
ONCE = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
REPLICATED = {"replicas": 2, "selector": LABELS, "template": TEMPLATE}
UPDATE = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}}
CONDITIONS = {"conditions": [{"type": "Available", "status": "True"}]}
OBJECTS |= {
    f"/apis/apps/v1{HERE}/deployments": {"spec": {**REPLICATED, "strategy": UPDATE}, "status": CONDITIONS},
    f"/apis/apps/v1{HERE}/replicasets": {"spec": REPLICATED, "status": CONDITIONS},
    f"/apis/apps/v1{HERE}/statefulsets": {
        "spec": {
            **REPLICATED,
            "serviceName": "s",
            "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": CLAIM}],
        },
        "status": {"replicas": 1, "collisionCount": 0},
    },
    f"/apis/apps/v1{HERE}/daemonsets": {
        "spec": {"selector": LABELS, "template": TEMPLATE, "updateStrategy": UPDATE},
        "status": {"numberReady": 1, "currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberMisscheduled": 0},
    },
    f"/apis/apps/v1{HERE}/controllerrevisions": {"data": {"spec": {"template": TEMPLATE}}, "revision": 1},
    f"/apis/batch/v1{HERE}/jobs": {
        "spec": {"template": ONCE, "completions": 1, "parallelism": 1},
        "status": {"uncountedTerminatedPods": {"succeeded": ["u"]}, "active": 1},
    },
    f"/apis/batch/v1{HERE}/cronjobs": {
        "spec": {
            "schedule": "* * * * *",
            "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": ONCE}},
        },
        "status": {"active": [REGARDING]},
    },
    f"/apis/policy/v1{HERE}/poddisruptionbudgets": {
        "spec": {"minAvailable": "50%", "selector": LABELS},
        "status": {"disruptedPods": {"p": "2026-01-01T00:00:00Z"}, "disruptionsAllowed": 1},
    },
    "/apis/scheduling.k8s.io/v1/priorityclasses": {"value": 7, "preemptionPolicy": "Never"},
    "/apis/storage.k8s.io/v1/volumeattachments": {
        "spec": {"attacher": "x.y", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
        "status": {"attached": False},
    },
    f"/api/v1{HERE}/configmaps": {"data": {"a": "b"}, "binaryData": {"c": "YQ=="}},
    f"/api/v1{HERE}/secrets": {"data": {"a": "YQ=="}, "stringData": {"b": "c"}, "type": "Opaque"},
    f"/api/v1{HERE}/serviceaccounts": {"imagePullSecrets": [{"name": "s"}]},
}
META = {"name": "a", "labels": {"a": "b"}, "annotations": {"x": "y"}, "finalizers": ["a.b/c"]}
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "a b",
    "1Gi",
    "-1Gi",
    {},
    [],
    [None],
    [{}],
    {"x": "y"},
    2**70,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


def mutated(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """A copy with one thing taken out or replaced by something odd."""
    body = copy.deepcopy(body)
    *parents, last = dice.choice(list(places(body)))
    inside: Any = body
    for name in parents:
        inside = inside[name]
    if dice.random() < 0.3:
        del inside[last]
    else:
        inside[last] = copy.deepcopy(dice.choice(VALUES))
    return body


@pytest.mark.slow
@pytest.mark.parametrize("path", OBJECTS)
async def test_no_body_breaks_the_server(api: Api, path: str) -> None:
    dice = random.Random(path)
    whole = {"metadata": META, **OBJECTS[path]}
    made = await api.send("POST", path, whole)
    assert made.status == 201, made.body
    status = "/status" if "status" in whole else ""
    for _ in range(120):
        body = mutated(whole, dice)
        method, content_type = dice.choice([("PUT", JSON), ("PATCH", MERGE_PATCH), ("PATCH", STRATEGIC_PATCH)])
        target = f"{path}/a{dice.choice(['', status])}"
        for sent in (("POST", path, JSON), (method, target, content_type)):
            answer = await api.send(sent[0], sent[1], body, content_type=sent[2])
            assert answer.status < 500, (sent, body, answer.body)
        shown = await api.send("GET", path, accept=TABLE)
        assert shown.status == 200, (body, shown.body)
        await Client(api.transport).list(KINDS[path.rpartition("/")[2]])  # what is stored can be read
        if dice.random() < 0.3:
            await api.send("PATCH", f"{path}/a", {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
            await api.send("DELETE", f"{path}/a", {"gracePeriodSeconds": 0})
    assert json.loads(shown.body)["kind"] == "Table"
