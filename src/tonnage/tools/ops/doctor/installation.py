"""Checks of the installation's objects: served kinds, CSIDriver, agents, controllers, schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from tonnage import __version__
from tonnage.base.aio.clock import time_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Lease
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import CSIDriverSpec
from tonnage.kubernetes.api.workloads import DaemonSet, Deployment
from tonnage.storage.pools import kinds
from tonnage.tools.ops.cluster_snapshot import View, is_ready
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

APPLY = "apply the installation again: tonnage manifests ... | kubectl apply -f -, or helm upgrade"
_NEEDED = ("v1/persistentvolumeclaims", "storage.k8s.io/v1/csistoragecapacities", "storage.k8s.io/v1/csinodes")
_CHOSEN = ("volumeLifecycleModes", "seLinuxMount")
"""Fields that differ between installations. False is right for seLinuxMount of any: the runtime labels files then."""
_GRAVE = ("attachRequired", "podInfoOnMount", "storageCapacity")
VERSION_LABEL = "app.kubernetes.io/version"
OLDEST, NEWEST = (1, 30), (1, 36)
"""The releases of Kubernetes that are tested: docs/compatibility.md."""
_TESTED = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
_RELEASE = re.compile(r"v(\d+)\.(\d+)")
STALE = 90.0
"""Seconds without renewal after which a Lease has no leader: long, because this machine's clock may differ."""


def check(view: View) -> Iterator[Finding]:
    """All checks of the installation's objects."""
    yield from _rights(view)
    yield from _unreadable(view)
    yield from _api(view)
    yield from _csi_driver(view)
    yield from _agents(view)
    yield from _controllers(view)
    yield from _schedulers(view)


def _rights(view: View) -> Iterator[Finding]:
    if view.rejected:
        text = f"not checked, permission denied: {few(sorted(view.rejected), 20)}"
        yield warn("rights", "reader", text, "run it with an administrator's kubeconfig (--kubeconfig)")


def _unreadable(view: View) -> Iterator[Finding]:
    for text in dict.fromkeys(view.unreadable):
        about, _, cause = text.partition(": ")
        yield fail("objects", about, f"{cause}; other checks ignore it", "correct the field, or delete the object")


def _api(view: View) -> Iterator[Finding]:
    lacking = [name for name in _NEEDED if name not in view.served]
    if lacking:
        text = f"Kubernetes {view.version} does not serve {few(lacking)}"
        yield fail("api", "versions", text, "use Kubernetes 1.24 or later")
    elif how := _outside_tested(view.version):
        text = f"Kubernetes {view.version} is {how} than the tested releases, {_TESTED}"
        yield warn("api", "versions", text, "use a tested release, or try on a test cluster first")
    else:
        yield ok("api", "versions", f"Kubernetes {view.version} serves what is needed")


def _outside_tested(version: str) -> str:
    """Return "older" or "newer" for a release outside those that are tested, else ""."""
    found = _RELEASE.match(version)
    release = (int(found[1]), int(found[2])) if found else NEWEST
    return "older" if release < OLDEST else "newer" if release > NEWEST else ""


def _csi_driver(view: View) -> Iterator[Finding]:
    if "csidrivers" in view.rejected:
        return
    if view.driver is None:
        text = "CSIDriver not found: the scheduler checks no capacity, and the kubelet passes no pod information"
        yield fail("csidriver", names.DRIVER, text, APPLY)
        return
    wanted = yaml.safe_load(manifests.render_part("csidriver.yaml", Installation()))["spec"]
    live = _plain(view.driver.spec)
    wrong = [key for key in wanted if key not in _CHOSEN and live.get(key) != wanted[key]]
    shared = _shared_pools(view) if view.driver.spec.se_linux_mount else []
    if shared:
        text = (
            f"seLinuxMount is true, must be false: volumes of {few(shared)} share a file system; where nodes have"
            " SELinux, their pods with seLinuxOptions do not start"
        )
        todo = f"drain nodes with SELinux, and {APPLY}"
        yield warn("csidriver", names.DRIVER, text, todo)
    for key in wrong:
        text = f"{key} is {_word(live.get(key))}, must be {_word(wanted[key])}"
        make = fail if key in _GRAVE else warn
        yield make("csidriver", names.DRIVER, text, f"delete the CSIDriver and {APPLY}")
    if "Persistent" not in view.driver.spec.volume_lifecycle_modes:
        text = "volumeLifecycleModes lacks Persistent: no claim's volume can be mounted"
        yield fail("csidriver", names.DRIVER, text, f"delete the CSIDriver and {APPLY}")
    elif not wrong and not shared:
        yield ok("csidriver", names.DRIVER, "its fields are those of the installation")


def _shared_pools(view: View) -> list[str]:
    """Pools some of whose volumes cannot be mounted with an SELinux context of their own."""
    files = [file for file in view.files.values() if not isinstance(file, str)]
    pools = [pool for file in files for pool in file.get("pools", ())]
    shared = [pool for pool in pools if not kinds.take_contexts([str(pool.get("kind", ""))])]
    return sorted({f"pool {pool.get('name', '')} ({pool.get('kind', '')})" for pool in shared})


def _plain(spec: CSIDriverSpec) -> dict[str, Any]:
    renamed = msgspec.structs.fields(spec)
    return {f.encode_name: getattr(spec, f.name) for f in renamed}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _agents(view: View) -> Iterator[Finding]:
    if "daemonsets" in view.rejected:
        return
    if not view.daemon_sets:
        if view.serving:
            text = f"no DaemonSet of agents in namespace {view.namespace}, yet {few(view.serving)} have the driver"
            yield warn("agents", view.namespace, text, "name the installation's namespace with --namespace")
        else:
            text = f"no DaemonSet of agents in namespace {view.namespace}: no volumes are created"
            yield fail("agents", view.namespace, text, f"name the right one with --namespace, or {APPLY}")
        return
    for found in view.daemon_sets:
        yield from _daemon_set(view, found)


def _daemon_set(view: View, found: DaemonSet) -> Iterator[Finding]:
    about, wanted = f"daemonset/{found.metadata.name}", found.status.desired_number_scheduled
    mine = [p for p in view.agents if p.metadata.controller_uid() == found.metadata.uid and not p.metadata.deleting]
    bad = [p for p in mine if not is_ready(p)]
    for pod in bad:
        node = pod.spec.node_name or "no node"
        text = f"the agent of {node} is not ready: {why_not_ready(pod)}; its node creates and deletes no volumes"
        yield fail("agents", f"pod/{pod.metadata.name}", text, _look(view, pod))
    if len(mine) < wanted:
        text = f"{len(mine)} of {wanted} agents have a pod"
        yield fail("agents", about, text, f"kubectl -n {view.namespace} describe {about}")
    elif not wanted:
        yield fail("agents", about, "it selects no node", "compare its nodeSelector with the nodes' labels")
    elif not bad:
        yield ok("agents", about, f"{wanted} of {wanted} agents are ready")
    versions = {v for p in mine if (v := p.metadata.labels.get(VERSION_LABEL)) and v != __version__}
    if versions:
        text = f"agents of version {few(sorted(versions))} run, this is {__version__}: expectations may differ"
        yield warn("agents", about, text, "wait for the end of the upgrade, or use their version of tonnage doctor")


def why_not_ready(pod: Pod) -> str:
    """In a few words."""
    for status in pod.status.container_statuses:
        raw = msgspec.to_builtins(status.state)
        for kind in ("waiting", "terminated"):
            if state := raw.get(kind):
                return " ".join(f"{state.get('reason', kind)} {state.get('message', '')}".split())[:200]
    for condition in pod.status.conditions:
        if condition.status == "False" and condition.message:
            return condition.message[:200]
    return pod.status.reason or pod.status.phase or "its state is unknown"


def _look(view: View, pod: Pod) -> str:
    name = pod.metadata.name
    return f"kubectl -n {view.namespace} describe pod {name}; kubectl -n {view.namespace} logs {name} --previous"


def _controllers(view: View) -> Iterator[Finding]:
    if "deployments" in view.rejected:
        return
    if not view.deployments:
        text = "no controller runs: no immediate binding, no pre-assigned pods, no cleanup of volumes of deleted nodes"
        yield warn("controller", view.namespace, text, APPLY)
    for found in view.deployments:
        yield _replicas(view, "controller", found, names.CONTROLLER_LEASE, leader(view))


def _schedulers(view: View) -> Iterator[Finding]:
    """There need be none."""
    for found in view.schedulers:
        yield _replicas(view, "scheduler", found, names.SCHEDULER, _holder(view, view.scheduler_lease))


def _replicas(view: View, component: str, found: Deployment, lease: str, holder: str) -> Finding:
    """Of a Deployment of which one replica works."""
    about, status = f"deployment/{found.metadata.name}", found.status
    ready = f"{status.ready_replicas} of {status.replicas} replicas are ready"
    todo = f"kubectl -n {view.namespace} get pods -l app.kubernetes.io/component={component}"
    if not status.ready_replicas or status.ready_replicas < status.replicas:
        return (warn if status.ready_replicas else fail)(component, about, ready, todo)
    if not holder:
        return fail(component, f"lease/{lease}", f"{ready}, none is leader", f"{todo}, its logs")
    return ok(component, about, f"{ready}, {holder} leads")


def leader(view: View) -> str:
    """Which controller leads, "" for none."""
    return "the box" if view.is_box else _holder(view, view.lease)


def _holder(view: View, lease: Lease | None) -> str:
    """The identity that holds and renews a Lease, "" if there is none."""
    renewed = time_of(lease.spec.renew_time) if lease is not None else None
    if lease is None or renewed is None or abs(view.now - renewed) >= STALE:
        return ""
    return lease.spec.holder_identity or ""
