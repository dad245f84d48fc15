"""The benchmark of inline volumes measures what it names; here with a few of everything."""

from __future__ import annotations

import os

import pytest
from benchmarks.inline.inline import InlineLoad, run
from benchmarks.inline.unpack import Sizes

from tonnage.host import mount

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def mounted() -> set[str]:
    """Mounts of benchmarks: other processes of the machine make their own meanwhile."""
    return {one.target for one in mount.mounts() if "/tonnage-bench-" in one.target}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
async def test_all_figures_and_nothing_is_left() -> None:
    before = mounted()
    found = await run(InlineLoad(pods=1, turns=2, volumes=4, renewals=3, soonest=1, unpacked=Sizes(1 << 20, 40, 1)))
    figures = {figure.name: figure for figure in found}
    assert figures["image: unpacked copies for 4 volumes of one image"].value == 1
    assert figures["image: NodePublishVolume, writable, p50"].value > 0
    assert figures["cert: 3 renewals at once, signed by the same process"].value >= 0
    assert [figure.other for figure in found if figure.name.startswith("unpacking")] != [None, None]
    assert mounted() <= before
