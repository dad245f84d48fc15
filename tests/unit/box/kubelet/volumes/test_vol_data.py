"""vol_data.json: written, read, damaged, removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage_box.kubelet.volumes import vol_data


def test_vol_data_survives_and_damage_is_told(tmp_path: Path) -> None:
    data = vol_data.VolumeData("d", "h", "pv")
    assert vol_data.load(str(tmp_path)) is None
    vol_data.save(str(tmp_path), data)
    assert vol_data.load(str(tmp_path)) == data
    (tmp_path / "vol_data.json").write_text("{")
    with pytest.raises(InvalidError, match="damaged"):
        vol_data.load(str(tmp_path))
    vol_data.remove(str(tmp_path))
    vol_data.remove(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
