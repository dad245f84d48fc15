"""Paths below a kubelet's root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage_box.kubelet.containers.paths import Paths


@pytest.mark.parametrize("uid", ["", "..", "a/b", "a\0b", "x" * 300])
def test_names_from_outside_stay_single_components(uid: str) -> None:
    with pytest.raises(InvalidError):
        Paths(Path("/k")).pod(uid)
