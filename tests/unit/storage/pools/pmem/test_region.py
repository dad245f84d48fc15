"""Regions of persistent memory: their lock, and labels of volumes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.host import ndctl
from tonnage.storage.pools.pmem import region
from tonnage.storage.pools.pmem.region import label_of, take


def test_a_region_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "_RUN", tmp_path / "run")
    monkeypatch.setattr(region, "_PAUSES", (0.0,))
    held = take("region0")
    assert fcntl.fcntl(held, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(UnavailableError, match="region0 is in use by another pool or process"):
        take("region0")
    os.close(take("region1"))
    os.close(held)
    os.close(take("region0"))


def test_a_label_holds_the_start_of_a_name() -> None:
    assert label_of("a") == "a"
    assert len(label_of("a" * 128)) == ndctl.MAX_LABEL
