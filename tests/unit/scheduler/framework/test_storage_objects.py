"""Free PVs: the smallest that fits, each for one claim; and the volumes that claims use."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.scheduler.framework.storage_objects import StaticVolumes, claim_key, reach_of

LABELS = {names.HOSTNAME_LABEL: "n1"}


def found(static: StaticVolumes, claim: Any, size: int = 1 << 30, *chosen: str) -> str:
    volume = static.find(claim, size, LABELS, "n1", chosen)
    return volume.metadata.name if volume is not None else ""


@pytest.fixture
def static(world: World) -> StaticVolumes:
    """Three volumes on node n1, and one elsewhere."""
    static = StaticVolumes()
    for name, size, node in (
        ("large", "9Gi", "n1"),
        ("small", "2Gi", "n1"),
        ("tiny", "1Mi", "n1"),
        ("far", "1Gi", "n2"),
    ):
        assert static.put(None, world.volume(name, size, node=node))
    return static


def test_the_smallest_that_fits_and_is_not_taken(static: StaticVolumes, world: World) -> None:
    first, second = world.claim("a"), world.claim("b")
    assert static.may_serve(first)
    assert found(static, first) == "small"
    assert found(static, first, 1 << 30, "small") == "large"
    static.assume("small", first.metadata.uid)
    assert (found(static, first), found(static, second)) == ("small", "large")
    static.release("small", second.metadata.uid)
    assert found(static, second) == "large"
    static.release("small", first.metadata.uid)
    assert found(static, second) == "small"
    assert found(static, first, 99 << 30) == ""


def test_a_volume_with_a_claim_ref_is_for_that_claim_alone(static: StaticVolumes, world: World) -> None:
    volume = world.volume("own", "5Gi", node="n1", claim="a")
    assert claim_key(volume) == "default/a"
    assert not static.put(None, volume)
    assert (found(static, world.claim("a")), found(static, world.claim("b"))) == ("own", "small")
    static.put(volume, world.volume("own", "5Gi", node="n2", claim="a"))
    assert found(static, world.claim("a")) == ""


def test_a_volume_that_is_gone_or_not_available_serves_nobody(static: StaticVolumes, world: World) -> None:
    volumes = [world.volume(name, size, node="n1") for name, size in (("large", "9Gi"), ("small", "2Gi"))]
    assert not static.put(volumes[0], volumes[0])  # it was free before
    static.put(volumes[1], None)
    assert found(static, world.claim("a")) == "large"
    static.put(volumes[0], world.volume("large", "9Gi", node="n1", phase="Released"))
    assert found(static, world.claim("a")) == ""
    assert not static.may_serve(world.claim("a", storageClassName="other"))


def test_reach(world: World) -> None:
    assert reach_of(world.volume("v")).matches({}, "n1")
    reach = reach_of(world.volume("w", node="n1"))
    assert [reach.matches({names.HOSTNAME_LABEL: node}, node) for node in ("n1", "n2")] == [True, False]


def test_volumes_that_count_against_a_limit(world: World) -> None:
    world.storage_class()
    world.claim("new")
    world.volume("v", csi={"driver": "other", "volumeHandle": "v"}, claim="bound")
    world.bound_claim("bound", "v")
    world.volume("path", csi=None, claim="local")
    world.bound_claim("local", "path")
    claims = [f"default/{name}" for name in ("new", "bound", "local", "unknown")]
    assert world.objects.used_by(claims) == ((names.DRIVER, "default/new"), ("other", "default/bound"))
