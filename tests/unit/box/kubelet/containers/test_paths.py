"""Paths below a kubelet's root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.box.kubelet.containers.paths import Paths
from tonnage.errors import InvalidError


@pytest.mark.parametrize("uid", ["", "..", "a/b", "a\0b", "x" * 300])
def test_names_from_outside_stay_single_components(uid: str) -> None:
    with pytest.raises(InvalidError):
        Paths(Path("/k")).pod(uid)
