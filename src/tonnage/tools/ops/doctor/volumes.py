"""Checks of PersistentVolumes that are not deleted, or whose node is gone."""

from __future__ import annotations

from collections.abc import Iterator

from tonnage.base.aio.clock import time_of
from tonnage.controller.node_labels import places_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event, PersistentVolume
from tonnage.tools.ops.cluster_snapshot import ABNORMAL, View
from tonnage.tools.ops.doctor.claims import PATIENCE
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn

_CHECK = "volumes"


def check(view: View) -> Iterator[Finding]:
    """All of our driver."""
    if {"persistentvolumes", "nodes"} & view.rejected.keys():
        return
    known = {names.label_value(name): name for name in view.node_names}
    found = [finding for volume in view.our_volumes for finding in _volume(view, volume, known)]
    found += [*_abnormal(view), *_stopped(view)]
    yield from found
    if not found:
        yield ok(_CHECK, "volumes", f"{len(view.our_volumes)}, each on an existing node, none waits for deletion")


def _stopped(view: View) -> Iterator[Finding]:
    """Nodes whose agent deletes nothing, since the API server may be in an older state."""
    for node in view.nodes:
        if why := node.metadata.annotations.get(names.DELETIONS_STOPPED):
            text = f"its volumes are not deleted, the API server may be in an older state: {why[:300]}"
            command = f"kubectl annotate node {node.metadata.name} {names.DELETIONS_STOPPED}-"
            yield fail(_CHECK, node.metadata.name, text, f"look at its orphans, then {command}")


def _abnormal(view: View) -> Iterator[Finding]:
    """Volumes whose agent last said that they are abnormal. Events expire; the metric of the agents does not."""
    last: dict[str, Event] = {}
    for event in sorted(view.health, key=lambda event: event.last_timestamp or ""):
        last[event.involved_object.uid] = event
    there = {claim.metadata.uid for claim in view.claims}
    for uid, event in sorted(last.items()):
        if event.reason == ABNORMAL and uid in there:
            about = f"{event.involved_object.namespace}/{event.involved_object.name}"
            text = f"its volume is abnormal since {event.first_timestamp or 'lately'}: {event.message[:300]}"
            yield fail(_CHECK, about, text, "run tonnage volumes list on its node; docs/tasks/replace-disk.md")


def _volume(view: View, volume: PersistentVolume, known: dict[str, str]) -> Iterator[Finding]:
    name, places = volume.metadata.name, places_of(volume, names.TOPOLOGY_NODE)
    delete = volume.spec.persistent_volume_reclaim_policy == "Delete"
    if not places:
        text = f"it has no node affinity by {names.TOPOLOGY_NODE}: pods may be scheduled on other nodes"
        yield warn(_CHECK, name, text, "set the one of its node, or recreate it (tonnage volumes adopt)")
    elif not set(places) & known.keys():
        since = volume.metadata.annotations.get(names.NODE_GONE_SINCE, "")
        text = f"its node {few(places)} is gone{f' since {since}' if since else ''}"
        todo = "restore the node, or abandon the data: docs/tasks/replace-node.md"
        yield warn(_CHECK, name, text, todo)
    elif volume.status.phase == "Failed":
        text = f"its deletion failed: {volume.status.message[:300] or 'without a message'}"
        yield fail(_CHECK, name, text, f"kubectl describe pv {name}")
    elif (volume.metadata.deleting or (delete and volume.status.phase == "Released")) and _is_old(view, volume):
        node = known[next(place for place in places if place in known)]
        down = view.is_down(node)
        text = f"it waits for deletion by node {node}{', whose agent is not ready' if down else ''}"
        yield (fail if down else warn)(_CHECK, name, text, "see agents" if down else f"kubectl describe pv {name}")
    elif not delete and volume.status.phase == "Released":
        text = "it has no claim any more, and stays because its reclaim policy is Retain"
        yield warn(_CHECK, name, text, f"kubectl delete pv {name}: its data is then an orphan on the node")


def _is_old(view: View, volume: PersistentVolume) -> bool:
    """Whether a Released volume should be deleted by now. Without a record of the time of release: yes."""
    since = time_of(volume.metadata.deletion_timestamp)
    return since is None or view.now - since > PATIENCE
