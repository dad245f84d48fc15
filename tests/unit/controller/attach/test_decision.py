"""What an attachment needs, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.controller.attach.decision import (
    NODE_ID,
    AttachmentFacts,
    AttachVolume,
    DetachVolume,
    MarkAttached,
    RejectAttachment,
    decide,
)
from tonnage.controller.attach.drivers import AttachingDriver
from tonnage.csi.client.types import AccessMode
from tonnage.kubernetes.api.core import CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import VolumeAttachment

NAME = "d.example.com"
FINALIZER = "external-attacher/d-example-com"


def _driver(*capabilities: str, publishes: bool = True) -> AttachingDriver:
    found = {*capabilities, *(["PUBLISH_UNPUBLISH_VOLUME"] if publishes else [])}
    return AttachingDriver(NAME, frozenset(found), False, {})


def _attachment(*, deleting: bool = False, held: bool = False, attached: bool = False) -> VolumeAttachment:
    meta = ObjectMeta(
        name="a",
        deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None,
        finalizers=[FINALIZER] if held else [],
        annotations={NODE_ID: "then"} if held else {},
    )
    spec = {"attacher": NAME, "nodeName": "n", "source": {"persistentVolumeName": "v"}}
    return VolumeAttachment(metadata=meta, spec=spec, status={"attached": attached})


def _volume(*modes: str, driver: str = NAME, **csi: Any) -> PersistentVolume:
    source = CSIPersistentVolumeSource(driver=driver, volume_handle="h", **csi)
    spec = PersistentVolumeSpec(access_modes=list(modes or ("ReadWriteOnce",)), csi=source, mount_options=["noatime"])
    return PersistentVolume(metadata=ObjectMeta(name="v"), spec=spec)


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_the_table(deleting: bool, held: bool, attached: bool, publishes: bool, forced: bool) -> None:
    facts = AttachmentFacts(
        _attachment(deleting=deleting, held=held, attached=attached),
        _driver(publishes=publishes),
        _volume(),
        "now",
        is_forced=forced,
    )
    found = decide(facts)
    if deleting:
        assert isinstance(found, DetachVolume) == held
        if isinstance(found, DetachVolume):
            assert (found.source is not None, found.node_id) == ((True, "then") if publishes else (False, ""))
    elif attached and not forced:
        assert found is None
    else:
        assert isinstance(found, AttachVolume if publishes else MarkAttached)


@pytest.mark.parametrize(
    ("modes", "fine", "wanted"),
    [
        (["ReadWriteOnce"], False, AccessMode.SINGLE_NODE_WRITER),
        (["ReadWriteOnce"], True, AccessMode.SINGLE_NODE_MULTI_WRITER),
        (["ReadWriteOncePod"], True, AccessMode.SINGLE_NODE_SINGLE_WRITER),
        (["ReadWriteOnce", "ReadWriteMany"], False, AccessMode.MULTI_NODE_MULTI_WRITER),
        (["ReadOnlyMany"], False, AccessMode.MULTI_NODE_READER_ONLY),
    ],
)
def test_access_modes_are_those_of_external_attacher(modes: list[str], fine: bool, wanted: AccessMode) -> None:
    driver = _driver(*(["SINGLE_NODE_MULTI_WRITER"] if fine else []))
    found = decide(AttachmentFacts(_attachment(), driver, _volume(*modes), "now"))
    assert isinstance(found, AttachVolume)
    assert found.capability.mode is wanted
    assert found.capability.mount_flags == ("noatime",)


@pytest.mark.parametrize(
    ("capability", "read_only", "wanted"),
    [("PUBLISH_READONLY", True, True), ("PUBLISH_READONLY", False, False), ("GET_CAPACITY", True, False)],
)
def test_only_a_driver_that_can_is_asked_for_reading_only(capability: str, read_only: bool, wanted: bool) -> None:
    found = decide(AttachmentFacts(_attachment(), _driver(capability), _volume(read_only=read_only), "now"))
    assert isinstance(found, AttachVolume)
    assert found.read_only is wanted


@pytest.mark.parametrize(
    ("facts", "message", "field"),
    [
        ({"volume": None, "node_id": "now"}, 'PersistentVolume "v" does not exist', "attachError"),
        ({"volume": _volume(driver="o"), "node_id": "x"}, f'"v" is no volume of driver {NAME}', "attachError"),
        ({"volume": _volume(), "node_id": ""}, "node n: its CSINode does not list", "attachError"),
        (
            {"volume": _volume("ReadWriteOnce", "ReadOnlyMany"), "node_id": "x"},
            "ReadWriteOnce, ReadOnly",
            "attachError",
        ),
        ({"volume": _volume(), "node_id": "x", "rival": "m"}, "is attached to node m", "attachError"),
    ],
)
def test_what_cannot_be_attached_is_rejected_by_name(facts: dict[str, Any], message: str, field: str) -> None:
    found = decide(AttachmentFacts(_attachment(), _driver(), **facts))
    assert isinstance(found, RejectAttachment)
    assert message in found.message
    assert found.field == field


def test_a_shared_volume_has_no_rival() -> None:
    facts = AttachmentFacts(_attachment(), _driver(), _volume("ReadWriteMany"), "now", rival="m")
    assert isinstance(decide(facts), AttachVolume)


def test_without_the_annotation_the_node_is_found_by_its_csinode() -> None:
    one = VolumeAttachment(
        metadata=ObjectMeta(name="a", deletion_timestamp="2026-01-01T00:00:00Z", finalizers=[FINALIZER]),
        spec=_attachment().spec,
    )
    assert decide(AttachmentFacts(one, _driver(), _volume(), "now")) == DetachVolume(_volume().spec.csi, "now")
    found = decide(AttachmentFacts(one, _driver(), _volume(), ""))
    assert isinstance(found, RejectAttachment)
    assert found.field == "detachError"
