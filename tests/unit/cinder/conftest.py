"""The driver over a child that has an in-memory storage, and a client of it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cinder.child import CHILD, PATIENCE, Fault
from tests.unit.cinder.kubelet import patient_client

from tonnage.cinder.driver import CinderConfig, CinderDriver
from tonnage.csi.client.client import CsiClient


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """The folder of the storage."""
    folder = tmp_path / "storage"
    folder.mkdir()
    return folder


@pytest.fixture
def command(storage: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", str(CHILD), str(storage))


@pytest.fixture
def fault(storage: Path) -> Fault:
    """Lets one request fail: fault(call, when, do)."""

    def arm(call: str, when: str, do: str) -> None:
        (storage / "fault.json").write_text(json.dumps({"call": call, "when": when, "do": do}))

    return arm


@pytest.fixture
def config(tmp_path: Path) -> CinderConfig:
    file = tmp_path / "cinder.yaml"
    (tmp_path / "password").write_text("array-password\n")
    password = f"{{file: {tmp_path}/password}}"
    file.write_text(
        f"backends:\n- {{name: first, volume_driver: x.Y, san_password: {password}}}\n- {{name: second, volume_driver: x.Y}}\n"
    )
    return CinderConfig(
        tmp_path / "csi.sock", file, state=tmp_path / "state", kubelet_root=tmp_path / "kubelet", time_limit=PATIENCE
    )


@pytest.fixture
async def driver(config: CinderConfig, command: tuple[str, ...]) -> AsyncIterator[CinderDriver]:
    made = CinderDriver(config, command=command)
    yield made
    await made.stop()


@pytest.fixture
def client(driver: CinderDriver) -> CsiClient:
    """A client in this process."""
    return patient_client(driver)


@pytest.fixture
def state(storage: Path) -> Callable[[], dict[str, Any]]:
    """What the storage has."""

    def read() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((storage / "state.json").read_text())
        return found

    return read
