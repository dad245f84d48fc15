"""What is accepted with a warning, wherever a claim or a pod is written or described."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

Obj = dict[str, Any]
CORE = "/api/v1/namespaces/default"
APPS = "/apis/apps/v1/namespaces/default"
BATCH = "/apis/batch/v1/namespaces/default"
LABELS = {"app": "web"}
TEXT = 'fractional byte value \\"107374182400m\\" is invalid, must be an integer'


def claim_spec(size: str) -> Obj:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}


def pod_spec(size: str, **more: Any) -> Obj:
    volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(size)}}}
    return {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "e", "emptyDir": {}}, volume], **more}


def workload(size: str, **more: Any) -> Obj:
    template = {"metadata": {"labels": LABELS}, "spec": pod_spec(size)}
    return {"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": LABELS}, "template": template, **more}}


def job(size: str) -> Obj:
    return {"template": {"spec": pod_spec(size, restartPolicy="Never")}}


def stateful_set(size: str) -> Obj:
    return workload("1Gi", volumeClaimTemplates=[{"metadata": {"name": "d"}, "spec": claim_spec(size)}])


IN_POD = "volumes[1].ephemeral.volumeClaimTemplate.spec"


@pytest.mark.parametrize(
    ("collection", "make", "where"),
    [
        (f"{CORE}/persistentvolumeclaims", lambda s: {"metadata": {"name": "x"}, "spec": claim_spec(s)}, "spec"),
        (f"{CORE}/pods", lambda s: {"metadata": {"name": "x"}, "spec": pod_spec(s)}, f"spec.{IN_POD}"),
        (f"{APPS}/statefulsets", stateful_set, "spec.volumeClaimTemplates[0]"),
        (f"{APPS}/statefulsets", workload, f"spec.template.spec.{IN_POD}"),
        (f"{APPS}/deployments", workload, f"spec.template.spec.{IN_POD}"),
        (f"{APPS}/daemonsets", workload, f"spec.template.spec.{IN_POD}"),
        (f"{APPS}/replicasets", workload, f"spec.template.spec.{IN_POD}"),
        (f"{BATCH}/jobs", lambda s: {"metadata": {"name": "x"}, "spec": job(s)}, f"spec.template.spec.{IN_POD}"),
        (
            f"{BATCH}/cronjobs",
            lambda s: {"metadata": {"name": "x"}, "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": job(s)}}},
            f"spec.jobTemplate.spec.template.spec.{IN_POD}",
        ),
    ],
)
async def test_a_fraction_of_a_byte_is_accepted_with_a_warning(
    api: Api, collection: str, make: Any, where: str
) -> None:
    made = await api.send("POST", collection, make("0.1Gi"))
    assert (made.status, made.headers["Warning"]) == (201, f'299 - "{where}.resources.requests[storage]: {TEXT}"')
    assert b'"107374182400m"' in made.body
    await api.delete(f"{collection}/x")
    whole = await api.send("POST", collection, make("0.5Gi"), query={"dryRun": "All"})
    assert "Warning" not in whole.headers


async def test_updates_are_warned_about_too(api: Api) -> None:
    claim, path = {"metadata": {"name": "x"}, "spec": claim_spec("0.1Gi")}, f"{CORE}/persistentvolumeclaims"
    await api.create(path, claim)
    note = {"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "c"}}}
    patched = await api.send("PATCH", f"{path}/x", note, content_type="application/merge-patch+json")
    deprecated = 'metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \\"storageClassName\\" attribute instead'
    assert f'299 - "{deprecated}"' in patched.headers["Warning"]
    assert f'299 - "spec.resources.requests[storage]: {TEXT}"' in patched.headers["Warning"]

    await api.create(f"{APPS}/statefulsets", stateful_set("0.1Gi"))
    body = {"spec": {"replicas": 0}}
    scaled = await api.send("PATCH", f"{APPS}/statefulsets/x", body, content_type="application/merge-patch+json")
    named = "spec.volumeClaimTemplates[0].Spec.resources.requests[storage]"
    assert scaled.headers["Warning"] == f'299 - "{named}: {TEXT}"'


def _shared(**spec: Any) -> Obj:
    return {**pod_spec("1Gi", **spec), "shareProcessNamespace": True}


@pytest.mark.parametrize(
    ("collection", "body", "where"),
    [
        (f"{CORE}/pods", _shared(), "spec"),
        (
            f"{APPS}/deployments",
            {"selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": _shared()}},
            "spec.template.spec",
        ),
        (
            f"{BATCH}/cronjobs",
            {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": {"spec": _shared(restartPolicy="Never")}}}},
            "spec.jobTemplate.spec.template.spec",
        ),
    ],
)
async def test_a_field_without_effect_is_warned_of_when_it_is_written(
    api: Api, collection: str, body: Obj, where: str
) -> None:
    made = await api.send("POST", collection, {"metadata": {"name": "x"}, "spec": body})
    text = "has no effect: each container sees its own processes only"
    assert (made.status, made.headers["Warning"]) == (201, f'299 - "{where}.shareProcessNamespace: {text}"')
    labels = {"metadata": {"labels": {"a": "b"}}}
    patched = await api.send("PATCH", f"{collection}/x", labels, content_type="application/merge-patch+json")
    assert "Warning" not in patched.headers
