"""What a trace of a claim shows: its provisioning, the call that the agent makes, and the driver's part of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tonnage.base.observe import trace
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
CREATE = "csi.v1.Controller/CreateVolume"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Takes the spans."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.use(provider)
    yield made
    trace.use(None)


def _of(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_a_claim_is_one_trace(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, exporter: InMemorySpanExporter
) -> None:
    node = await make_node()
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    uid = (await node.claim("app-v0")).metadata.uid

    (provision,) = _of(exporter, "provision")
    about = dict(provision.attributes or {})
    assert about["k8s.persistentvolumeclaim.uid"] == uid
    assert (about["k8s.persistentvolumeclaim.name"], about["k8s.storageclass.name"]) == ("app-v0", "late")
    assert provision.status.status_code is not StatusCode.ERROR

    client, server = sorted(_of(exporter, CREATE), key=lambda span: span.kind.value, reverse=True)
    assert (client.kind, server.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert provision.context is not None
    assert client.context is not None
    assert server.context is not None
    assert client.parent is not None
    assert server.parent is not None
    assert (client.parent.span_id, server.parent.span_id) == (provision.context.span_id, client.context.span_id)
    assert server.context.trace_id == provision.context.trace_id
    told = dict(server.attributes or {})
    assert (told["csi.name"], told["k8s.persistentvolumeclaim.name"]) == (f"pvc-{uid}", "app-v0")
    assert told["rpc.grpc.status_code"] == 0


async def test_a_failure_is_seen(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, exporter: InMemorySpanExporter
) -> None:
    from tonnage.base.errors import HostError
    from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
    from tonnage.storage.pools.fake.backend import FakePool

    class Broken(FakePool):
        async def create(self, request: VolumeRequest) -> PoolVolume:
            raise HostError("the disk is on fire")

    node = await make_node(pool=Broken("scratch", 1 << 35, directories=False))
    await eventually(lambda: node.publishes("32Gi", "32Gi"))
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")

    async def seen() -> bool:
        return bool(_of(exporter, "provision"))

    await eventually(seen)
    assert _of(exporter, "provision")[0].status.status_code is StatusCode.ERROR
    server = next(span for span in _of(exporter, CREATE) if span.kind is SpanKind.SERVER)
    assert dict(server.attributes or {})["rpc.grpc.status_code"] == 13
