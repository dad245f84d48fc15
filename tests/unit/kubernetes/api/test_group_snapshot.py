"""Names of groups and of their members, as external-snapshotter computes them."""

from __future__ import annotations

import hashlib

import pytest

from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_HANDLE,
    VolumeGroupSnapshotContent,
    group_content_name,
    group_name,
    group_of,
    is_member_content,
    member_content,
    member_names,
)
from tonnage.kubernetes.api.meta import ObjectMeta, OwnerReference
from tonnage.kubernetes.api.snapshot import VolumeSnapshot, VolumeSnapshotContent

OWNER = OwnerReference("groupsnapshot.storage.k8s.io/v1beta2", "VolumeGroupSnapshot", "g", "uid-1")


def _snapshot(name: str, *owners: OwnerReference) -> VolumeSnapshot:
    return VolumeSnapshot(metadata=ObjectMeta(name=name, owner_references=list(owners)))


def test_names_are_those_of_upstream() -> None:
    digest = hashlib.sha256(b"uid-1pool/pvc-2").hexdigest()
    assert member_names("uid-1", "pool/pvc-2") == (f"snapshot-{digest}", f"snapcontent-{digest}")
    assert (group_content_name("u"), group_name("u")) == ("groupsnapcontent-u", "groupsnapshot-u")


def test_a_member_has_the_owner_and_the_name() -> None:
    name, content = member_names("uid-1", "pool/pvc-2")
    assert group_of(_snapshot(name, OWNER)) == OWNER
    assert member_content(_snapshot(name, OWNER)) == content


@pytest.mark.parametrize(
    "single",
    [
        _snapshot("monday", OWNER),
        _snapshot(member_names("u", "v")[0]),
        _snapshot(member_names("u", "v")[0], OwnerReference("v1", "VolumeGroupSnapshot", "g", "uid-1")),
        _snapshot(member_names("u", "v")[0], OwnerReference("batch/v1", "Job", "g", "uid-1")),
    ],
)
def test_others_are_single(single: VolumeSnapshot) -> None:
    assert (group_of(single), member_content(single)) == (None, "")


def test_contents_of_members_are_annotated() -> None:
    assert is_member_content(VolumeSnapshotContent(metadata=ObjectMeta(annotations={GROUP_HANDLE: "g"})))
    assert not is_member_content(VolumeSnapshotContent())


def test_handles_are_those_of_the_driver_or_the_given_ones() -> None:
    given = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["a", "b"]}}
    content = convert({"spec": {"source": given}}, VolumeGroupSnapshotContent)
    assert (content.handle, content.snapshot_handles) == ("g", ["a", "b"])
    status = {"volumeGroupSnapshotHandle": "g", "volumeSnapshotInfoList": [{"snapshotHandle": "a"}]}
    content = convert({"spec": {"source": {"volumeHandles": ["v"]}}, "status": status}, VolumeGroupSnapshotContent)
    assert (content.handle, content.snapshot_handles) == ("g", ["a"])
    empty = VolumeGroupSnapshotContent()
    assert (empty.handle, empty.snapshot_handles) == ("", [])
