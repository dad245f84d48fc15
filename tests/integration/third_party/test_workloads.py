"""Deployments, StatefulSets, DaemonSets and Jobs as a user handles them: the kubectl that is there, real volumes."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SLEEP = '[sh, -c, "trap exit TERM; sleep infinity & wait"]'
POD = f"{{name: main, image: 'any:1', command: {SLEEP}}}"
DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, annotations: {{kubernetes.io/change-cause: first}}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{terminationGracePeriodSeconds: 1, containers: [{POD}]}}
"""


def images(cluster: Any, selector: str) -> set[str]:
    found = cluster.get("pods", "-l", selector)["items"]
    return {c["image"] for p in found if "deletionTimestamp" not in p["metadata"] for c in p["spec"]["containers"]}


def test_deployment_rollout_scale_history_and_undo(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "successfully rolled out" in cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    assert "unchanged" in cluster.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    cluster.kubectl("scale", "deployment/web", "--replicas=3")
    cluster.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=3", "deployment/web", "--timeout=300s")
    shown = cluster.kubectl("get", "deploy,rs").split()
    assert "3/3" in shown

    cluster.kubectl(
        "apply", "-f", "-", stdin=DEPLOYMENT.replace("any:1", "any:2").replace("cause: first", "cause: second")
    )
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    assert images(cluster, "app=web") == {"any:2"}
    history = cluster.kubectl("rollout", "history", "deployment/web")
    assert [line.split() for line in history.splitlines()[2:] if line] == [["1", "first"], ["2", "second"]]

    cluster.kubectl("rollout", "undo", "deployment/web")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    assert images(cluster, "app=web") == {"any:1"}
    assert cluster.get("deployment", "web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"

    described = cluster.kubectl("describe", "deployment", "web")
    assert "Scaled up replica set web-" in described
    assert "MinimumReplicasAvailable" in described
    cluster.kubectl("delete", "deployment", "web", "--timeout=300s")
    cluster.until("nothing is left", lambda: not _left(cluster, "web"))


def _left(cluster: Any, app: str) -> list[Any]:
    found: list[Any] = cluster.get("pods,rs", "-l", f"app={app}")["items"]
    return found


DATABASE = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: any:1
          command: [sh, -c, "echo $HOSTNAME >> /data/who; cat /data/who; trap exit TERM; sleep infinity & wait"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


def claims(cluster: Any) -> dict[str, str]:
    return {c["metadata"]["name"]: c["status"]["phase"] for c in cluster.get("pvc")["items"]}


def written(cluster: Any, pod: str, times: int) -> bool:
    return bool(cluster.kubectl("logs", pod).split() == [pod] * times)


def test_statefulset_keeps_its_data_and_gives_it_up_as_told(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=DATABASE)
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=300s")
    assert claims(cluster) == {"data-db-0": "Bound", "data-db-1": "Bound"}
    cluster.until("it was written", lambda: written(cluster, "db-0", 1))

    before = cluster.get("pod", "db-0")
    cluster.kubectl("delete", "pod", "db-0")
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=300s")
    after = cluster.get("pod", "db-0")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["nodeName"] == before["spec"]["nodeName"]  # where its volume is
    cluster.until("the data of the first is there", lambda: written(cluster, "db-0", 2))

    cluster.kubectl("set", "image", "statefulset/db", "main=any:2")
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=300s")
    assert images(cluster, "app=db") == {"any:2"}
    cluster.kubectl("rollout", "undo", "statefulset/db")
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=300s")
    assert images(cluster, "app=db") == {"any:1"}
    cluster.until("the data of all is there", lambda: written(cluster, "db-0", 4))

    cluster.kubectl("scale", "statefulset/db", "--replicas=1")
    cluster.until("the second claim is gone", lambda: set(claims(cluster)) == {"data-db-0"})
    cluster.kubectl("scale", "statefulset/db", "--replicas=2")
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=300s")
    cluster.until("its successor is empty", lambda: written(cluster, "db-1", 1))

    cluster.kubectl("delete", "statefulset", "db", "--timeout=300s")
    cluster.until("claims and volumes are gone", lambda: not cluster.get("pvc,pv")["items"])
    cluster.until("all room is back", lambda: set(cluster.capacities().values()) == {"30716Mi"})


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: %(name)s}
spec:
  %(spec)s
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: any, command: [sh, -c, '%(script)s'], volumeMounts: [{name: out, mountPath: /out}]}]
      volumes:
        - name: out
          ephemeral:
            volumeClaimTemplate:
              spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


def test_jobs_run_on_scratch_volumes_and_end(cluster: Any) -> None:
    spec = "{completions: 4, parallelism: 2, completionMode: Indexed}"[1:-1].replace(", ", "\n  ")
    manifest = JOB % {"name": "parts", "spec": spec, "script": "echo part $JOB_COMPLETION_INDEX | tee /out/part"}
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    cluster.kubectl("wait", "--for=condition=complete", "job/parts", "--timeout=300s")
    logs = cluster.kubectl("logs", "-l", "job-name=parts", "--tail=-1").splitlines()
    assert sorted(logs) == [f"part {n}" for n in range(4)]
    assert "4/4" in cluster.kubectl("get", "jobs").split()
    assert "Completed Indexes:  0-3" in cluster.kubectl("describe", "job", "parts")

    wrong = JOB % {"name": "wrong", "spec": "backoffLimit: 0", "script": "exit 3"}
    cluster.kubectl("apply", "-f", "-", stdin=wrong)
    cluster.kubectl("wait", "--for=condition=failed", "job/wrong", "--timeout=300s")
    assert "BackoffLimitExceeded" in cluster.kubectl("describe", "job", "wrong")

    short = JOB % {"name": "short", "spec": "ttlSecondsAfterFinished: 0", "script": "true"}
    cluster.kubectl("apply", "-f", "-", stdin=short)
    cluster.kubectl("wait", "--for=delete", "job/short", "--timeout=300s")
    cluster.kubectl("delete", "jobs", "--all", "--timeout=300s")
    cluster.until("pods, claims and volumes are gone", lambda: not cluster.get("pods,pvc,pv")["items"])


DAEMON = f"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: agent}}
spec:
  selector: {{matchLabels: {{app: agent}}}}
  template:
    metadata: {{labels: {{app: agent}}}}
    spec: {{terminationGracePeriodSeconds: 1, containers: [{POD}]}}
"""


def test_daemonset_on_every_node(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=DAEMON)
    cluster.kubectl("rollout", "status", "daemonset/agent", "--timeout=300s")
    pods = cluster.get("pods", "-l", "app=agent")["items"]
    assert sorted(p["spec"]["nodeName"] for p in pods) == ["node-1", "node-2", "node-3"]

    cluster.kubectl("set", "image", "daemonset/agent", "main=any:2")
    cluster.kubectl("rollout", "status", "daemonset/agent", "--timeout=300s")
    assert images(cluster, "app=agent") == {"any:2"}
    assert len(cluster.kubectl("rollout", "history", "daemonset/agent").strip().splitlines()) == 4
    cluster.kubectl("rollout", "undo", "daemonset/agent")
    cluster.kubectl("rollout", "status", "daemonset/agent", "--timeout=300s")
    assert images(cluster, "app=agent") == {"any:1"}

    chosen = '{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"node-2"}}}}}'
    cluster.kubectl("patch", "daemonset", "agent", "-p", chosen)
    cluster.until("only the chosen node has one", lambda: placed(cluster) == ["node-2"])
    cluster.kubectl("delete", "daemonset", "agent", "--timeout=300s")
    cluster.until("nothing is left", lambda: not _left(cluster, "agent"))


def placed(cluster: Any) -> list[str]:
    return [p["spec"]["nodeName"] for p in cluster.get("pods", "-l", "app=agent")["items"] if p["spec"].get("nodeName")]


def test_a_cluster_that_was_killed_goes_on_with_what_it_had(make_cluster: Any) -> None:
    """kill -9 in the middle of a rollout, then up again: it is finished, no pod is made twice."""
    cluster = make_cluster("--nodes", "2", "--pool", "image,name=scratch,size=20Gi,sparse=yes,overcommit=yes")
    cluster.up()
    cluster.kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", "replicas: 6"))
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    cluster.kubectl("set", "image", "deployment/web", "main=any:2")
    os.kill(cluster.pid(), signal.SIGKILL)
    cluster.up()
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    cluster.until("all are new, and six", lambda: _new_and_six(cluster))


def _new_and_six(cluster: Any) -> bool:
    pods = cluster.get("pods")["items"]
    return [p["spec"]["containers"][0]["image"] for p in pods] == ["any:2"] * 6


def test_the_examples(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", str(EXAMPLES / "statefulset.yaml"), "-f", str(EXAMPLES / "job.yaml"))
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=300s")
    cluster.kubectl("wait", "--for=condition=complete", "job/parts", "--timeout=300s")
    cluster.kubectl("delete", "statefulset/db", "job/parts", "--timeout=300s")
    cluster.until("pods, claims and volumes are gone", lambda: not cluster.get("pods,pvc,pv")["items"])


CRON = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        spec: {restartPolicy: Never, containers: [{name: main, image: any, command: [echo, tock]}]}
"""


def test_cronjob_runs_its_jobs(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=CRON)
    assert "unchanged" in cluster.kubectl("apply", "-f", "-", stdin=CRON)
    rejected = cluster.kubectl("apply", "-f", "-", stdin=CRON.replace("* * * * *", "now and then"), fails=True)
    assert "spec.schedule" in rejected
    # Its minute has passed without a job: that one runs at once.
    missed = (datetime.now(UTC) - timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    patch = json.dumps({"status": {"lastScheduleTime": missed}})
    cluster.kubectl("patch", "cronjob", "tick", "--subresource=status", "--type=merge", "-p", patch)
    cluster.until("a job has run", lambda: "Complete" in cluster.kubectl("get", "jobs"))
    assert cluster.get("cronjob", "tick")["status"]["lastSuccessfulTime"]
    assert "tick" in cluster.kubectl("describe", "cronjob", "tick")
    cluster.kubectl("delete", "cronjob", "tick", "--timeout=300s")
    cluster.until("nothing is left", lambda: not cluster.get("jobs,pods")["items"])
