from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
LABELS = {"app": "web"}
DEPLOY, RS, STS, DS = (f"apps/{plural}" for plural in ("deployments", "replicasets", "statefulsets", "daemonsets"))
JOB = "batch/jobs"


def workload(*, pod: Obj | None = None, **spec: Any) -> Obj:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "i"}]} | (pod or {})}
    whole = {"selector": {"matchLabels": LABELS}, "template": template} | spec
    return {"metadata": {"name": "x", "namespace": "ns"}, "spec": whole}


def job(**spec: Any) -> Obj:
    return workload(pod={"restartPolicy": "Never"}, **spec)


def cron(**spec: Any) -> Obj:
    made = {"template": job()["spec"]["template"]} | spec.pop("job", {})
    whole = {"schedule": "*/5 * * * *", "jobTemplate": {"spec": made}} | spec
    return {"metadata": {"name": "x", "namespace": "ns"}, "spec": whole}


CLAIM = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
MOUNTING = {"containers": [{"name": "main", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(DEPLOY, workload(), id="deployment"),
        pytest.param(DEPLOY, workload(strategy={"type": "Recreate"}), id="recreate"),
        pytest.param(RS, workload(replicas=0), id="replica set"),
        pytest.param(STS, workload(pod=MOUNTING, volumeClaimTemplates=[CLAIM]), id="stateful set mounts its claims"),
        pytest.param(DS, workload(), id="daemon set"),
        pytest.param(JOB, job(), id="job"),
        pytest.param("batch/cronjobs", cron(), id="cron job"),
        pytest.param("batch/cronjobs", cron(schedule="@daily"), id="daily"),
        pytest.param(JOB, job(completionMode="Indexed", completions=3, parallelism=2), id="indexed job"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []
    assert faults(key, good, good) == []


@pytest.mark.parametrize("key", [DEPLOY, RS, STS, DS])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"selector": {}}, "spec.selector: Invalid value: {}: empty selector is invalid for", id="empty"),
        pytest.param(
            {"selector": {"matchLabels": {"app": "other"}}},
            'spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`',
            id="other labels",
        ),
        pytest.param({"minReadySeconds": -1}, "spec.minReadySeconds: Invalid value: -1: must be greater", id="seconds"),
    ],
)
def test_selector_and_template_must_agree(faults: Faults, key: str, change: Obj, said: str) -> None:
    assert any(fault.startswith(said) for fault in faults(key, workload(**change)))


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            DEPLOY, workload(replicas=-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0", id="-1"
        ),
        pytest.param(
            DEPLOY,
            workload(pod={"restartPolicy": "Never"}),
            'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"',
            id="restart policy",
        ),
        pytest.param(
            DEPLOY,
            workload(pod={"containers": []}),
            "spec.template.spec.containers: Required value",
            id="faults of the pods' own",
        ),
        pytest.param(
            DEPLOY,
            workload(strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            id="no way forward",
        ),
        pytest.param(
            DEPLOY,
            workload(strategy={"rollingUpdate": {"maxSurge": "many"}}),
            'spec.strategy.rollingUpdate.maxSurge: Invalid value: "many": a valid percent string',
            id="no percentage",
        ),
        pytest.param(
            DEPLOY,
            workload(strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
            id="bounds of nothing",
        ),
        pytest.param(
            DEPLOY,
            workload(progressDeadlineSeconds=5, minReadySeconds=5),
            "spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds",
            id="deadline",
        ),
        pytest.param(
            STS,
            workload(updateStrategy={"type": "Recreate"}),
            "spec.updateStrategy: Invalid value:",
            id="strategy of another kind",
        ),
        pytest.param(
            STS,
            workload(persistentVolumeClaimRetentionPolicy={"whenScaled": "Keep"}),
            'spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "Keep"',
            id="retention",
        ),
        pytest.param(STS, workload(podManagementPolicy="Any"), "spec.podManagementPolicy: Invalid value", id="policy"),
        pytest.param(
            STS, workload(pod=MOUNTING), 'spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"', id="mount"
        ),
        pytest.param(
            DS,
            workload(updateStrategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}),
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable",
            id="either",
        ),
    ],
)  # fmt: skip
def test_wrong_ones_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert any(fault.startswith(said) for fault in faults(key, wrong)), faults(key, wrong)


def changed(obj: Obj, **spec: Any) -> Obj:
    new = copy.deepcopy(obj)
    new["spec"] |= spec
    return new


@pytest.mark.parametrize("key", [DEPLOY, RS, DS])
def test_a_selector_never_changes(faults: Faults, key: str) -> None:
    old = workload()
    new = changed(old, selector={"matchLabels": LABELS, "matchExpressions": [{"key": "app", "operator": "Exists"}]})
    assert faults(key, new, old)[-1].endswith("field is immutable")


def test_of_a_stateful_set_little_may_change(faults: Faults) -> None:
    old = workload(volumeClaimTemplates=[CLAIM])
    for free in ({"replicas": 2}, {"minReadySeconds": 1}, {"revisionHistoryLimit": 1}, {"ordinals": {"start": 3}}):
        assert faults(STS, changed(old, **free), old) == []
    fixed: Obj
    for fixed in ({"volumeClaimTemplates": []}, {"serviceName": "s"}, {"podManagementPolicy": "Parallel"}):
        assert "are forbidden" in faults(STS, changed(old, **fixed), old)[0]


def test_a_revision_never_changes(faults: Faults) -> None:
    old = {"metadata": {"name": "x"}, "revision": 1, "data": {"spec": {}}}
    assert faults("apps/controllerrevisions", old | {"revision": 2}, old) == []
    assert faults("apps/controllerrevisions", old | {"data": {}}, old) == [
        "data: Invalid value: {}: field is immutable"
    ]
    assert faults("apps/controllerrevisions", {"metadata": {"name": "x"}, "revision": 1})[0].startswith(
        "data: Required"
    )


@pytest.mark.parametrize(("key", "most"), [(DEPLOY, 10_000), (RS, 20_000), (STS, 10_000)])
def test_the_number_of_pods_is_bounded(faults: Faults, key: str, most: int) -> None:
    said = f"spec.replicas: Invalid value: 2147483647: must be less than or equal to {most} in the box"
    assert said in faults(key, workload(replicas=2**31 - 1))
    assert [fault for fault in faults(key, workload(replicas=most)) if "replicas" in fault] == []


@pytest.mark.parametrize("key", [DEPLOY, RS, STS, DS])
def test_the_requirements_of_a_selector_are_bounded(faults: Faults, key: str) -> None:
    """Labels and expressions together: both are compared with each pod."""
    most = 101 if key == RS else 100  # a Deployment's ReplicaSet selects by the hash of its template, too
    expressions = [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(most)]
    over = {"matchLabels": LABELS, "matchExpressions": expressions}
    said = f"spec.selector: Too many: {most + 1}: must have at most {most} requirements"
    assert said in faults(key, workload(selector=over))
    within = over | {"matchExpressions": expressions[1:]}
    assert [fault for fault in faults(key, workload(selector=within)) if "selector" in fault] == []
