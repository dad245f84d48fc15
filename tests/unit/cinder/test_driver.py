"""The configuration, and which services a process offers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.cinder.driver import CinderConfig, CinderDriver, load
from tonnage.csi.client.client import CsiClient
from tonnage.csi.errors import Code, CsiError


def test_options_of_cinder_are_passed_on(config: CinderConfig) -> None:
    assert config.backends is not None
    first, second = load(config.backends)
    assert first == {"name": "first", "volume_driver": "x.Y", "san_password": "array-password"}
    assert second == {"name": "second", "volume_driver": "x.Y"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "want one key, backends"),
        ("backends: []", "with a list of back ends"),
        ("backends: [{name: a}]", r"backends\[0\]: volume_driver is missing"),
        ("backends: [{name: a b, volume_driver: x}]", r"backends\[0\]: name: want letters, digits"),
        ("backends: [{name: a, volume_driver: x}, {name: a, volume_driver: x}]", "two back ends have the same name"),
        ("backends: [{name: a, volume_driver: x, p: {file: /none}}]", r"backends\[0\]: p: /none: No such file"),
        ("backends: [{p: hunter2", "line 1 is not YAML"),
    ],
)
def test_files_that_are_rejected(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "cinder.yaml"
    file.write_text(text)
    with pytest.raises(InvalidError, match=why) as failure:
        load(file)
    assert "hunter2" not in str(failure.value)


async def test_both_services_at_the_socket(driver: CinderDriver, config: CinderConfig) -> None:
    await driver.start()
    async with CsiClient(config.endpoint) as client:
        assert (await client.plugin_info()).name == "cinder.tonnage.dev"
        assert {"PUBLISH_UNPUBLISH_VOLUME", "CLONE_VOLUME", "EXPAND_VOLUME"} <= await client.controller_capabilities()
        assert "STAGE_UNSTAGE_VOLUME" in await client.node_capabilities()
        assert (await client.node_info()).node_id == (
            '{"host":"node-1","initiator":"iqn.2026-01.com.example:1","ip":"10.0.0.1"}'
        )


async def test_without_back_ends_only_the_node(config: CinderConfig, command: tuple[str, ...]) -> None:
    driver = CinderDriver(replace(config, backends=None), command=command)
    await driver.start()
    try:
        async with CsiClient(config.endpoint) as client:
            assert "STAGE_UNSTAGE_VOLUME" in await client.node_capabilities()
            with pytest.raises(CsiError) as failure:
                await client.list_volumes()
            assert failure.value.code is Code.UNIMPLEMENTED
    finally:
        await driver.stop()
