"""Cinder's library itself, in the environment that `make test-cinder` makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.cinder.kubelet import patient_client
from tests.vm.debian_kernel import cache_folder
from tests.vm.guests import guest_suite, uml  # noqa: F401  # fixtures

from tonnage.cinder.driver import CinderConfig, CinderDriver
from tonnage.csi.client.client import CsiClient

FAKE = """
backends:
- {name: fake, volume_driver: cinder.tests.fake_driver.FakeLoggingVolumeDriver}
- {name: away, volume_driver: cinder.tests.no_driver.Driver}
"""


@pytest.fixture(scope="session")
def interpreter() -> Path:
    """The Python that has cinderlib."""
    found = cache_folder("cinder-venv") / "bin" / "python"
    if not (found.parents[1] / ".ready").exists():
        pytest.skip("needs cinderlib in an environment of its own (make test-cinder)")
    return found


@pytest.fixture
def config(tmp_path: Path, interpreter: Path) -> CinderConfig:
    file = tmp_path / "cinder.yaml"
    file.write_text(FAKE)
    return CinderConfig(
        tmp_path / "csi.sock", file, state=tmp_path / "state", kubelet_root=tmp_path, interpreter=str(interpreter)
    )


@pytest.fixture
async def client(config: CinderConfig) -> AsyncIterator[CsiClient]:
    driver = CinderDriver(config)
    yield patient_client(driver)
    await driver.stop()
