"""What the kernel says of thin pools, and a machine without device mapper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import HostError
from tonnage.host import dm


@pytest.mark.parametrize(
    ("found", "pool"),
    [
        (None, None),
        (("linear", ""), None),
        (("thin-pool", "Fail"), dm.ThinPool(1.0, 1.0, writable=False)),
        (("thin-pool", "7 5/10 30/40 - rw discard_passdown"), dm.ThinPool(0.75, 0.5, writable=True, transaction=7)),
        (("thin-pool", "7 5/10 40/40 - out_of_data_space x"), dm.ThinPool(1.0, 0.5, writable=False, transaction=7)),
    ],
)
def test_the_state_of_a_thin_pool(
    monkeypatch: pytest.MonkeyPatch, found: tuple[str, str] | None, pool: dm.ThinPool | None
) -> None:
    monkeypatch.setattr(dm, "status", lambda _: found)
    assert dm.thin_pool("vg-pool") == pool


def test_how_much_of_a_thin_volume_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dm, "status", lambda _: ("thin", "4096 8191"))
    assert dm.thin_mapped("vg-lv") == 4096
    monkeypatch.setattr(dm, "status", lambda _: ("thin", "Fail"))
    with pytest.raises(HostError, match="vg-lv is no thin volume"):
        dm.thin_mapped("vg-lv")


def test_without_device_mapper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dm, "CONTROL", str(tmp_path / "missing"))
    with pytest.raises(HostError, match="cannot ask device-mapper about vg-lv: No such file"):
        dm.open_count("vg-lv")
    with pytest.raises(HostError, match="cannot remove device 1 of thin pool vg-pool"):
        dm.delete_thin("vg-pool", 1)
    with pytest.raises(HostError, match="does not take transaction 3"):
        dm.set_transaction("vg-pool", 2, 3)
