"""Who may create pods can create claims, by ephemeral volumes: the note of docs/security.md, and the policy against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.control_plane import Answer, ControlPlane

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "tenants"
POLICY = Path(__file__).parents[2] / "deploy" / "policies" / "generic-ephemeral-volumes.yaml"
PATHS = {
    "Pod": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "ReplicationController": f"/api/v1/namespaces/{NAMESPACE}/replicationcontrollers",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "ReplicaSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets",
    "StatefulSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets",
    "DaemonSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets",
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "CronJob": f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs",
}


class Tenants:
    """A user who may make all kinds of pods and no claims, and one who may make claims as well."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        plane.kubectl("create", "namespace", NAMESPACE)
        works = "pods,replicationcontrollers,deployments.apps,replicasets.apps,statefulsets.apps,daemonsets.apps,jobs.batch,cronjobs.batch"
        plane.kubectl(
            "-n", NAMESPACE, "create", "role", "works", "--verb=create,update,patch,get", f"--resource={works}"
        )
        plane.kubectl("-n", NAMESPACE, "create", "role", "claims", "--verb=create", "--resource=persistentvolumeclaims")
        self.tokens = {}
        for user, roles in (("plain", ("works",)), ("storing", ("works", "claims"))):
            plane.kubectl("-n", NAMESPACE, "create", "serviceaccount", user)
            for role in roles:
                account = f"--serviceaccount={NAMESPACE}:{user}"
                plane.kubectl("-n", NAMESPACE, "create", "rolebinding", f"{user}-{role}", f"--role={role}", account)
            self.tokens[user] = plane.kubectl("-n", NAMESPACE, "create", "token", user).strip()

    def make(self, user: str, body: Any, *, dry: bool = True) -> Answer:
        """One object, as a user; "" is the administrator."""
        token = self.tokens.get(user, "")
        return self.plane.send("POST", PATHS[body["kind"]] + ("?dryRun=All" if dry else ""), body, token=token)


@pytest.fixture(scope="module")
def tenants(installed: ControlPlane) -> Iterator[Tenants]:
    """Made once."""
    yield Tenants(installed)
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def forbidden(tenants: Tenants) -> Iterator[Tenants]:
    """With the policy at work."""
    tenants.plane.kubectl("apply", "-f", str(POLICY))
    probe = work("Pod", "probe", ephemeral=True)
    tenants.plane.until("the policy is at work", lambda: tenants.make("plain", probe).status == 403)
    yield tenants
    tenants.plane.kubectl("delete", "-f", str(POLICY))


def work(kind: str, name: str, *, ephemeral: bool, volumes: int = 1) -> dict[str, Any]:
    """Something that makes pods, with ephemeral volumes or an emptyDir."""
    template = {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": names.SCRATCH_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        }
    }
    source: dict[str, Any] = {"ephemeral": {"volumeClaimTemplate": template}} if ephemeral else {"emptyDir": {}}
    restart = "Never" if kind in ("Job", "CronJob") else "Always"
    pod = {
        "schedulerName": "nobody",
        "restartPolicy": restart,
        "containers": [{"name": "c", "image": "none.invalid/none"}],
        "volumes": [{"name": f"v{n}", **source} for n in range(volumes)],
    }
    labelled = {"metadata": {"labels": {"app": name}}, "spec": pod}
    selector = {"selector": {"app": name} if kind == "ReplicationController" else {"matchLabels": {"app": name}}}
    spec: dict[str, Any] = {"template": labelled, **selector}
    if kind == "Pod":
        spec = pod
    elif kind == "Job":
        spec = {"template": labelled}
    elif kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": labelled}}}
    elif kind == "StatefulSet":
        spec["serviceName"] = name
    group = PATHS[kind].split("/namespaces")[0].removeprefix("/apis/").removeprefix("/api/")
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def claims(tenants: Tenants) -> list[str]:
    found = tenants.plane.get("-n", NAMESPACE, "pvc")["items"]
    return sorted(claim["metadata"]["name"] for claim in found)


def test_pods_make_claims_and_quota_holds(tenants: Tenants) -> None:
    """Before the policy: a user without any right to claims gets them, as many as the quota allows."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "claims", "namespace": NAMESPACE}}
    tenants.plane.apply({**quota, "spec": {"hard": {"persistentvolumeclaims": "1", "requests.storage": "10Gi"}}})
    tenants.plane.until(
        "the quota counts", lambda: tenants.plane.get("-n", NAMESPACE, "quota", "claims").get("status", {}) != {}
    )
    assert tenants.make("plain", work("Pod", "sly", ephemeral=True, volumes=2), dry=False).status == 201

    def rejections() -> list[str]:
        events = tenants.plane.get("-n", NAMESPACE, "events")["items"]
        return [e["message"] for e in events if e["reason"] == "FailedBinding" or "exceeded quota" in e["message"]]

    tenants.plane.until("one claim is rejected", lambda: any("exceeded quota" in text for text in rejections()))
    assert len(claims(tenants)) == 1
    tenants.plane.kubectl("-n", NAMESPACE, "delete", "quota/claims", "pod/sly", "--grace-period=0", "--force")
    tenants.plane.until("its claim went with the pod", lambda: claims(tenants) == [])


@pytest.mark.parametrize("kind", PATHS)
def test_rejected_for_who_may_not_create_claims(kind: str, forbidden: Tenants) -> None:
    rejected = forbidden.make("plain", work(kind, "sly", ephemeral=True))
    assert rejected.status == 403, rejected.body
    assert f"system:serviceaccount:{NAMESPACE}:plain may not create persistentvolumeclaims" in rejected.message
    assert forbidden.make("plain", work(kind, "fine", ephemeral=False)).status == 201
    allowed = forbidden.make("storing", work(kind, "fine", ephemeral=True))
    assert allowed.status == 201, allowed.body


def test_template_cannot_be_changed_later(forbidden: Tenants) -> None:
    fine, sly = work("Deployment", "later", ephemeral=False), work("Deployment", "later", ephemeral=True)
    assert forbidden.make("plain", fine, dry=False).status == 201
    path = f"{PATHS['Deployment']}/later"
    changed = forbidden.plane.send("PUT", path, sly, token=forbidden.tokens["plain"])
    assert (changed.status, "may not create" in changed.message) == (403, True)


def test_controllers_make_what_was_allowed(forbidden: Tenants) -> None:
    """The pods of a Deployment are made by a controller, which has no right to claims either."""
    assert forbidden.make("storing", work("Deployment", "rightful", ephemeral=True), dry=False).status == 201
    forbidden.plane.until(
        "the pod's claim is there", lambda: any(name.startswith("rightful-") for name in claims(forbidden))
    )
