"""RPCs of a service: how their requests are read, and what is not offered."""

from __future__ import annotations

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.csi._proto import csi_pb2
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.dispatch import Calls
from tonnage.csi.server.http2 import Http2Request
from tonnage.csi.server.inflight import InFlight
from tonnage.csi.server.service import Method, Service

CONTROLLER = csi_pb2.DESCRIPTOR.services_by_name["Controller"]


class _Deletes:
    async def DeleteVolume(self, _request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        return csi_pb2.DeleteVolumeResponse()


def _method(name: str) -> Method:
    return Method(Service(CONTROLLER, _Deletes()), CONTROLLER.methods_by_name[name])


def _framed(body: bytes, *, length: int | None = None, compressed: int = 0) -> Http2Request:
    size = len(body) if length is None else length
    return Http2Request({}, bytes([compressed]) + size.to_bytes(4, "big") + body, is_long=False)


def test_a_request_is_read_as_its_message() -> None:
    method = _method("DeleteVolume")
    wanted = csi_pb2.DeleteVolumeRequest(volume_id="p/v")
    assert method.path == b"/csi.v1.Controller/DeleteVolume"
    assert method.read(_framed(wanted.SerializeToString())) == wanted


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Http2Request({}, b"", is_long=False), Code.INVALID_ARGUMENT),
        (_framed(b"", compressed=1), Code.UNIMPLEMENTED),
        (_framed(b"", length=3), Code.INTERNAL),
        (_framed(b"\xff\xff"), Code.INTERNAL),
    ],
)
def test_what_cannot_be_read_has_grpcs_code(request_: Http2Request, code: Code) -> None:
    with pytest.raises(CsiError) as caught:
        _method("DeleteVolume").read(request_)
    assert caught.value.code is code


async def test_only_what_is_offered_is_checked_and_run() -> None:
    calls = Calls("test", [Service(CONTROLLER, _Deletes())], InFlight(), RealClock())
    with pytest.raises(CsiError, match="volume_id is missing"):
        await calls.call("/csi.v1.Controller/DeleteVolume", csi_pb2.DeleteVolumeRequest(), 60)
    assert _method("ControllerPublishVolume").function is None
    with pytest.raises(CsiError, match="is not offered by this driver"):
        await calls.call("/csi.v1.Controller/ControllerPublishVolume", csi_pb2.ControllerPublishVolumeRequest(), 60)
    await calls.close()
