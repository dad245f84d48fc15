"""The loop of groups on an API server in this process: what it writes, in which order, and what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.controller.snapshots.groupworld import TAKEN, GroupLoops, GroupWorld
from tests.unit.controller.snapshots.world import OTHER, Recording
from tests.unit.fixture_types import Running, Settle, Told

from tonnage.controller.snapshots.group_controller import GroupSnapshotController
from tonnage.controller.snapshots.role import SnapshotLoops
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_BEING_DELETED,
    GROUP_BOUND,
    GROUP_CONTENT_BOUND,
    GROUP_HANDLE,
    IN_GROUP,
    group_content_name,
    member_names,
)
from tonnage.kubernetes.api.kinds import CLAIMS, GROUP_CONTENTS, GROUP_SNAPSHOTS, SNAPSHOTS
from tonnage.kubernetes.api.snapshot import AS_SOURCE, BOUND, CONTENT_BOUND, MANAGED_BY
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer


@pytest.fixture
def world(kube: Client) -> GroupWorld:
    return GroupWorld(kube)


@pytest.fixture
async def loops(
    api_server: ApiServer, world: GroupWorld, informers: Informers, events: EventRecorder, settle: Settle,
    running: Running,
) -> AsyncIterator[GroupLoops]:  # fmt: skip
    recording = Recording(api_server.transport("system:admin"))
    both = SnapshotLoops(context(Client(recording), informers, events))
    async with running(both):
        yield GroupLoops(world, settle, recording, both)


async def test_a_group_costs_two_writes_and_four_for_each_member(
    world: GroupWorld, loops: GroupLoops, told: Told
) -> None:
    """And one of the agent. An API server takes no status with a new object, so each object of a member costs two."""
    await world.group_classed()
    await world.db()
    made = await world.group()
    uid = made.metadata.uid
    assert made.metadata.finalizers == [GROUP_BOUND]
    pairs = [member_names(uid, f"pool/v-{claim}") for claim in ("data", "log")]
    members = [
        line
        for name, content in pairs
        for line in (
            "POST namespaces/default/volumesnapshots",
            "POST volumesnapshotcontents",
            f"PATCH volumesnapshotcontents/{content}/status",
            f"PATCH namespaces/default/volumesnapshots/{name}/status",
        )
    ]
    writes = await loops.settled()
    assert sorted(writes) == sorted(
        ["POST volumegroupsnapshotcontents", *members, "PATCH namespaces/default/volumegroupsnapshots/nightly/status"]
    )
    assert (writes[0], writes[-1].rpartition("/")[0]) == (
        "POST volumegroupsnapshotcontents",
        "PATCH namespaces/default/volumegroupsnapshots/nightly",
    )
    (content,) = await world.group_contents()
    assert (content.metadata.name, content.metadata.finalizers) == (group_content_name(uid), [GROUP_CONTENT_BOUND])
    assert content.metadata.labels == {MANAGED_BY: "n1"}
    assert content.spec.source.volume_handles == ["pool/v-data", "pool/v-log"]
    shown = await world.get_group()
    assert shown is not None
    assert (shown.status.ready_to_use, shown.status.creation_time, shown.status.error) == (True, TAKEN, None)
    assert shown.status.bound_volume_group_snapshot_content_name == content.metadata.name
    reasons = [reason for about, _, reason, _ in await told() if about == "nightly"]
    assert reasons == ["CreatingGroupSnapshot", "GroupSnapshotReady"]


async def test_a_group_goes_on_when_the_watch_shows_its_contents_late(
    world: GroupWorld, loops: GroupLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members themselves were ready before: they wake the group no more."""
    groups = loops.loops.all[1]
    assert isinstance(groups, GroupSnapshotController)
    with monkeypatch.context() as late:
        late.setattr(groups._member_contents, "get", lambda _name: None)
        await world.group_classed()
        await world.db()
        made = await world.group()
        await loops.settled()
        shown = await world.get_group()
        assert shown is not None
        assert not shown.status.ready_to_use
    content = await world.content(member_names(made.metadata.uid, "pool/v-log")[1])
    assert content is not None
    for key in groups._member_content_changed(content):
        groups.enqueue(key)
    await loops.settled()
    shown = await world.get_group()
    assert shown is not None
    assert shown.status.ready_to_use


async def test_members_are_complete_and_can_be_restored(world: GroupWorld, loops: GroupLoops) -> None:
    await world.group_classed()
    await world.db()
    made = await world.group()
    await loops.settled()
    for claim in ("data", "log"):
        name, content_name = member_names(made.metadata.uid, f"pool/v-{claim}")
        member, content = await world.get(name), await world.content(content_name)
        assert member is not None
        assert content is not None
        assert member.metadata.finalizers == [AS_SOURCE, BOUND, IN_GROUP]
        (owner,) = member.metadata.owner_references
        assert (owner.kind, owner.uid, owner.controller) == ("VolumeGroupSnapshot", made.metadata.uid, None)
        assert member.spec.source.persistent_volume_claim_name == claim
        assert (member.status.ready_to_use, member.status.restore_size) == (True, "1Gi")
        assert member.status.bound_volume_snapshot_content_name == content_name
        assert member.status.volume_group_snapshot_name == "nightly"
        assert content.metadata.labels == {MANAGED_BY: "n1"}
        assert content.metadata.annotations == {GROUP_HANDLE: f"pool/groupsnapshot-{made.metadata.uid}"}
        assert (content.metadata.finalizers, content.spec.source_volume_mode) == ([CONTENT_BOUND], "Filesystem")
        assert content.spec.source.volume_handle == f"pool/v-{claim}"
        assert content.spec.volume_snapshot_ref.uid == member.metadata.uid
        assert content.status.snapshot_handle == f"pool/v-{claim}-{made.metadata.uid}"
        assert content.status.volume_group_snapshot_handle == f"pool/groupsnapshot-{made.metadata.uid}"


async def test_on_kubernetes_one_write_more_brings_finalizer_and_default_class(
    world: GroupWorld, loops: GroupLoops
) -> None:
    await world.group_classed(default=True)
    await world.db("data")
    await loops.quiet()
    await world.group(of_class="", bare=True)
    writes = await loops.settled()
    assert writes[0] == "PATCH namespaces/default/volumegroupsnapshots/nightly"
    shown = await world.get_group()
    assert shown is not None
    assert (shown.spec.volume_group_snapshot_class_name, shown.metadata.finalizers) == ("tonnage", [GROUP_BOUND])
    assert shown.status.ready_to_use


async def test_expressions_of_the_selector_count(world: GroupWorld, loops: GroupLoops) -> None:
    await world.group_classed()
    await world.db("data", "log", "tmp")
    await world.kube.patch(CLAIMS, "tmp", {"metadata": {"labels": {"backup": "no"}}}, "default")
    expression = {"key": "backup", "operator": "DoesNotExist"}
    selector = {"matchLabels": {"app": "db"}, "matchExpressions": [expression]}
    await world.group(source={"selector": selector})
    await loops.settled()
    (content,) = await world.group_contents()
    assert content.spec.source.volume_handles == ["pool/v-data", "pool/v-log"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "reason", "text"),
    [
        ({"classes": ()}, "GetGroupSnapshotClassFailed", '"tonnage" not found'),
        ({"named": False, "classes": ()}, "SetDefaultGroupSnapshotClassFailed", "cannot find default group snapshot c"),
        ({"named": False, "classes": ("a", "b")}, "SetDefaultGroupSnapshotClassFailed", "2 default group snapshot cla"),
        ({"claims": "none"}, "CreateGroupSnapshotContentFailed", "no claim of this namespace has the labels of spec."),
        (
            {"source": {"selector": {"matchExpressions": [{"key": "app", "operator": "Sometimes"}]}}},
            "CreateGroupSnapshotContentFailed",
            "selector on 'app': 'Sometimes' is not an operator",
        ),
        ({"claims": "unbound"}, "CreateGroupSnapshotContentFailed", "the PVC new is not yet bound to a PV"),
        ({"claims": "local"}, "CreateGroupSnapshotContentFailed", "snapshotting non-CSI volumes is not supported"),
        (
            {"claims": "two"},
            "CreateGroupSnapshotContentFailed",
            f"claim other is of driver {OTHER}, claim data is of driver csi.tonnage.dev: a group is of one driver",
        ),
        (
            {"driver": OTHER},
            "CreateGroupSnapshotContentFailed",
            f"class tonnage is of driver {OTHER}, the volumes of t",
        ),
        (
            {"claims": "apart"},
            "CreateGroupSnapshotContentFailed",
            "claims data, log are on nodes n1, n2: a group is of one node",
        ),
        (
            {"parameters": {"csi.storage.k8s.io/group-snapshotter-secret-name": "s"}},
            "CreateGroupSnapshotContentFailed",
            "csi.tonnage.dev uses no secrets: remove it",
        ),
    ],
)
async def test_what_cannot_be_made_says_why_once_and_holds_nothing(
    world: GroupWorld, loops: GroupLoops, told: Told, given: dict[str, Any], reason: str, text: str
) -> None:
    for name in given.get("classes", ("tonnage",)):
        more = {key: given[key] for key in ("driver", "parameters") if key in given}
        await world.group_classed(name, default=True, **more)
    match given.get("claims", "both"):
        case "unbound":
            spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            new = {"metadata": {"name": "new", "labels": {"app": "db"}}, "spec": spec}
            await world.kube.create(CLAIMS, new, "default")
        case "local":
            terms = [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["n1"]}]}]
            affinity = {"required": {"nodeSelectorTerms": terms}}
            await world.db("data", volume={"local": {"path": "/x"}, "nodeAffinity": affinity})
        case "two":
            await world.db("data")
            await world.db("other", driver=OTHER)
        case "apart":
            await world.db()
            await world.move("log", "n2")
        case "both":
            await world.db()
    await loops.quiet()
    await world.group(of_class="tonnage" if given.get("named", True) else "", source=given.get("source"))
    assert await loops.settled() == ["PATCH namespaces/default/volumegroupsnapshots/nightly/status"]
    loops.loops.all[1].enqueue("default/nightly")
    assert await loops.settled() == []
    shown = await world.get_group()
    assert shown is not None
    assert shown.status.error is not None
    assert text in shown.status.error.message
    assert [(kind, why) for _, kind, why, _ in await told()] == [("Warning", reason)]
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.get_group(), await world.group_contents()) == (None, [])


async def test_what_was_missing_is_noticed_without_a_timer(world: GroupWorld, loops: GroupLoops) -> None:
    await world.group()
    await loops.settled()
    await world.group_classed()
    await loops.settled()
    shown = await world.get_group()
    assert shown is not None
    assert shown.status.error is not None
    assert "no claim of this namespace has the labels" in shown.status.error.message
    await world.db()
    await loops.settled()
    shown = await world.get_group()
    assert shown is not None
    assert (shown.status.ready_to_use, shown.status.error) == (True, None)


async def test_what_the_driver_rejects_is_shown_and_can_be_deleted(world: GroupWorld, loops: GroupLoops) -> None:
    world.rejection = "pool fast on node n1 has no capacity for snapshots"
    await world.group_classed()
    await world.db()
    await world.group()
    await loops.settled()
    shown = await world.get_group()
    assert shown is not None
    assert shown.status.error is not None
    assert (shown.status.ready_to_use, shown.status.error.message) == (False, world.rejection)
    assert await world.members() == []
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.get_group(), await world.group_contents()) == (None, [])


async def test_a_group_goes_with_all_its_members(world: GroupWorld, loops: GroupLoops) -> None:
    await world.group_classed()
    await world.db()
    await world.group()
    await loops.settled()
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.get_group(), await world.group_contents(), await world.members()) == (None, [], [])
    assert (await world.contents(), world.storage) == ([], {})


async def test_a_member_alone_is_not_deleted(world: GroupWorld, loops: GroupLoops, told: Told) -> None:
    await world.group_classed()
    await world.db()
    made = await world.group()
    await loops.settled()
    name, content = member_names(made.metadata.uid, "pool/v-log")
    await world.kube.delete(SNAPSHOTS, name, "default")
    assert await loops.settled() == []
    warned = [(why, text) for about, kind, why, text in await told() if kind == "Warning" and about == name]
    assert [why for why, _ in warned] == ["SnapshotDeletePending"]
    assert "member of VolumeGroupSnapshot default/nightly" in warned[0][1]
    assert await world.content(content) is not None
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.members(), await world.contents(), world.storage) == ([], [], {})


async def test_a_claim_that_is_restored_keeps_the_whole_group(world: GroupWorld, loops: GroupLoops, told: Told) -> None:
    await world.group_classed()
    await world.db()
    made = await world.group()
    await loops.settled()
    await world.restoring(member_names(made.metadata.uid, "pool/v-log")[0])
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    assert await loops.settled() == []
    assert ("nightly", "SnapshotDeletePending") in {(about, why) for about, _, why, _ in await told()}
    assert len(world.storage) == 2
    await world.kube.patch(CLAIMS, "copy", {"status": {"phase": "Bound"}}, "default", subresource="status")
    await loops.settled()
    assert (await world.get_group(), world.storage) == (None, {})


async def test_retained_contents_stay(world: GroupWorld, loops: GroupLoops) -> None:
    await world.group_classed(policy="Retain")
    await world.db()
    await world.group()
    await loops.settled()
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.get_group(), await world.members()) == (None, [])
    assert (len(await world.group_contents()), len(await world.contents()), len(world.storage)) == (1, 2, 2)


async def test_an_existing_group_is_bound_and_its_members_made(world: GroupWorld, loops: GroupLoops) -> None:
    await world.existing_group()
    await world.group(of_class="", source={"volumeGroupSnapshotContentName": "old"})
    await loops.settled()
    shown = await world.get_group()
    assert shown is not None
    assert (shown.status.ready_to_use, shown.status.bound_volume_group_snapshot_content_name) == (True, "old")
    members = await world.members()
    assert [member.status.ready_to_use for member in members] == [True, True]
    for member in members:
        content = await world.content(member.spec.source.volume_snapshot_content_name)
        assert content is not None
        assert content.spec.source.snapshot_handle == content.status.snapshot_handle
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.get_group(), await world.members(), world.storage) == (None, [], {})


@pytest.mark.parametrize(
    ("source", "to", "reason"),
    [("old", "other", "GroupSnapshotContentMisbound"), ("none", "nightly", "GroupSnapshotContentMissing")],
)
async def test_a_content_of_another_group_is_not_taken(
    world: GroupWorld, loops: GroupLoops, told: Told, source: str, to: str, reason: str
) -> None:
    await world.existing_group(to=to)
    await world.group(of_class="", source={"volumeGroupSnapshotContentName": source})
    await loops.settled()
    assert reason in {why for _, _, why, _ in await told()}
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    await loops.settled()
    assert (await world.get_group(), len(await world.group_contents())) == (None, 1)


async def test_a_driver_of_others_is_told_before_its_content_is_deleted(world: GroupWorld, loops: GroupLoops) -> None:
    keys = {"secret-name": "${volumegroupsnapshot.name}-key", "secret-namespace": "${volumegroupsnapshot.namespace}"}
    parameters = {f"csi.storage.k8s.io/group-snapshotter-{key}": value for key, value in keys.items()}
    await world.group_classed(driver=OTHER, parameters=parameters)
    await world.db(driver=OTHER)
    await world.move("log", "n2")
    made = await world.group()
    await loops.settled()
    (content,) = await world.group_contents()
    assert content.metadata.labels == {}, "another driver may snapshot volumes of several nodes"
    prefix = "groupsnapshot.storage.kubernetes.io/deletion-secret-"
    assert content.metadata.annotations == {f"{prefix}name": "nightly-key", f"{prefix}namespace": "default"}
    await world.kube.delete(GROUP_SNAPSHOTS, "nightly", "default")
    for _ in range(4):
        await loops.quiet()
        for member in await world.contents():
            await world.free(member)
    found = await world.kube.get(GROUP_CONTENTS, group_content_name(made.metadata.uid))
    assert (found.metadata.deleting, found.metadata.annotations[GROUP_BEING_DELETED]) == (True, "yes")


async def test_a_snapshot_that_takes_a_members_name_is_not_bound(
    world: GroupWorld, loops: GroupLoops, told: Told
) -> None:
    await world.group_classed()
    await world.db("data")
    made = await world.group()
    await loops.settled(agents=False)
    name, _ = member_names(made.metadata.uid, "pool/v-data")
    await world.snapshot(name)
    await loops.settled()
    assert "GroupSnapshotMemberMisbound" in {why for _, _, why, _ in await told()}
    await world.kube.delete(SNAPSHOTS, name, "default")
    await loops.settled()
    shown = await world.get_group()
    assert shown is not None
    assert shown.status.ready_to_use
