"""What a kubelet asks a plugin; tests/unit/csi/driver/test_registration.py has the driver's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.csi.errors import Code, CsiError
from tonnage_box.kubelet.registration import RegistrationClient


async def test_a_plugin_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    plugin = RegistrationClient(tmp_path / "gone-reg.sock")
    with pytest.raises(CsiError) as failed:
        await plugin.get_info()
    assert failed.value.code is Code.UNAVAILABLE
    with pytest.raises(CsiError):
        await plugin.notify(registered=True)
    plugin.close()
