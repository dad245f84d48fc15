"""A driver on its own: served, measured, stopped, started again."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, PreconditionError
from tonnage.base.observe.exporter import Address
from tonnage.base.observe.metrics import REGISTRY
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver, serve
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import parse
from tonnage_box.kubelet.registration import RegistrationClient


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> DriverConfig:
    """A fake pool in a folder with a short path, with metrics."""
    folder = tmp_path_factory.mktemp("d")
    return DriverConfig(
        folder / "csi.sock", [parse("fake,name=test-driver,size=10Gi")], "n1", folder / "state",
        registry=folder, metrics=Address("127.0.0.1", 0),
    )  # fmt: skip


async def test_serves_registers_and_measures(config: DriverConfig) -> None:
    driver = StandaloneDriver(config)
    await driver.start()
    try:
        async with CsiClient(config.endpoint) as client:
            await client.create_volume("v", 1 << 30, [VolumeCapability()])
            assert (await client.node_info()).node_id == "n1"
        registrar = RegistrationClient(config.endpoint.parent / "csi.tonnage.dev-reg.sock")
        assert (await registrar.get_info()).endpoint == str(config.endpoint)
        registrar.close()
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(driver.metrics_url).read().decode())
    finally:
        await driver.stop()

    labels = '{kind="fake",pool="test-driver"}'
    assert f"tonnage_pool_size_bytes{labels} 1.073741824e+10" in text
    assert f"tonnage_pool_volumes{labels} 1.0" in text
    assert f"tonnage_pool_reserved_bytes{labels} 1.073741824e+09" in text
    for nothing in ("snapshots", "abnormal_volumes", "erasing_bytes", "erasing_volumes"):
        assert f"tonnage_pool_{nothing}{labels} 0.0" in text
    assert f"tonnage_pool_up{labels} 1.0" in text
    assert 'csi_plugin_operations_seconds_count{driver_name="csi.tonnage.dev",grpc_status_code="OK"' in text
    assert not config.endpoint.exists()


async def test_pools_on_one_disk_reserve_its_bytes_once_also_one_that_is_added(
    config: DriverConfig, tmp_path: Path
) -> None:
    first, second, third = (parse(f"image:{tmp_path}/{name},name={name},sparse=yes,rootfs=yes") for name in "abc")
    driver = StandaloneDriver(replace(config, pools=[first, second], metrics=None))
    await driver.start()
    try:
        half = (await driver.pools[0].capacity(block=True)).largest
        await driver.change.add(third)
        assert len({id(pool.backend.disk) for pool in driver.pools}) == 1, (
            "what each of them reserves is not the others'"
        )
        for pool in driver.pools:  # a third of what the disk has, which others change meanwhile, but not by a quarter
            await pool.create(VolumeRequest("v", 64 << 20, block=True))
            assert 0 < (await pool.capacity(block=True)).largest < half * 3 // 4
    finally:
        await driver.stop()


async def test_a_pool_that_cannot_be_read_is_shown_as_down(config: DriverConfig, tmp_path: Path) -> None:
    driver = StandaloneDriver(replace(config, pools=[parse(f"image:{tmp_path}/p,name=lost")]))
    await driver.measure()  # never opened

    assert REGISTRY.get_sample_value("tonnage_pool_up", {"pool": "lost", "kind": "image"}) == 0


async def test_ends_when_told(config: DriverConfig) -> None:
    ended = asyncio.Event()
    serving = asyncio.create_task(serve(StandaloneDriver(config), ended))
    while not config.endpoint.exists():
        await asyncio.sleep(0.001)
    ended.set()
    await serving

    assert not config.endpoint.exists()


async def test_a_second_driver_at_the_same_socket_is_rejected_and_the_first_goes_on(config: DriverConfig) -> None:
    first = StandaloneDriver(config)
    await first.start()
    try:
        with pytest.raises(PreconditionError, match="another process serves"):
            await serve(StandaloneDriver(replace(config, registry=None)), asyncio.Event())
        async with CsiClient(config.endpoint) as client:
            assert await client.probe()
    finally:
        await first.stop()


async def test_metrics_at_a_taken_port_are_rejected_by_name(config: DriverConfig) -> None:
    first = StandaloneDriver(config)
    await first.start()
    try:
        port = int(first.metrics_url.rsplit(":", 1)[1].split("/")[0])
        other = replace(
            config, endpoint=config.endpoint.with_name("o.sock"), registry=None, metrics=Address("127.0.0.1", port)
        )
        with pytest.raises(HostError, match=f"cannot serve metrics at 127.0.0.1:{port}: .*; choose another address"):
            await serve(StandaloneDriver(other), asyncio.Event())
        assert not other.endpoint.exists()
    finally:
        await first.stop()
