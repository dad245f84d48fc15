"""Requests in logs and traces show the volume and no secret."""

from __future__ import annotations

from tonnage.csi._proto import csi_pb2
from tonnage.csi.server.request_text import LONGEST, attributes, describe, span_name
from tonnage.kubernetes.api import names

SECRET = "geheim"


def test_no_secret_of_any_kind_is_shown() -> None:
    mount = csi_pb2.VolumeCapability.MountVolume(fs_type="ext4", mount_flags=[SECRET])
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id="p/v",
        secrets={"password": SECRET},
        volume_context={"csi.storage.k8s.io/serviceAccount.tokens": SECRET, "plain": "shown"},
        volume_capability=csi_pb2.VolumeCapability(mount=mount),
    )
    text = describe(request)
    assert SECRET not in text
    assert {'"p/v"', '"shown"', '"ext4"'} <= set(text.split())
    assert request.secrets["password"] == SECRET  # the request itself is unchanged
    assert len(describe(csi_pb2.CreateVolumeRequest(name="x" * 5000))) == LONGEST


def test_a_span_names_the_volume_and_its_owner() -> None:
    parameters = {names.CSI_PVC_NAME: "claim", names.CSI_PVC_NAMESPACE: "ns", "other": "left out"}
    request = csi_pb2.CreateVolumeRequest(name="pvc-1", parameters=parameters, secrets={"a": SECRET})
    assert attributes(request) == {
        "rpc.system": "grpc",
        "csi.name": "pvc-1",
        "k8s.persistentvolumeclaim.name": "claim",
        "k8s.namespace.name": "ns",
    }
    assert span_name(b"/csi.v1.Controller/CreateVolume") == span_name("csi.v1.Controller/CreateVolume")


def test_the_query_of_a_url_is_not_logged() -> None:
    content = '{"url":{"sha256":"ab","url":"https://h/x?X-Amz-Signature=5ecret"}}'
    request = csi_pb2.CreateVolumeRequest(
        name="v", parameters={names.PARAM_CONTENT: content, "source": "https://h/y?sig=5ecret#sha256=cd"}
    )
    line = describe(request)
    assert "5ecret" not in line
    assert "https://h/x?..." in line
    assert "https://h/y?...#sha256=cd" in line
    assert request.parameters[names.PARAM_CONTENT] == content
