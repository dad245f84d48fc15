"""No field of any kind makes others wait: the work between two turns of the event loop is counted for its largest value.

`pytest tests/unit/box/cost --fields 10000` counts for all of them, which takes an hour or two. What is counted are calls
of functions. A comparison of two long lists is none, and so the report has milliseconds of processor, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.unit.box.cost.largest import KindField, fields
from tests.unit.box.cost.measure import MOST_APART, MOST_CALLS, Cost, Meter
from tests.unit.box.cost.turns import Turns
from tests.unit.box.cost.world import world

from tonnage_box.apiserver.kinds.groups import RESOURCES

LISTED = (
    "pods metadata.ownerReferences",
    "pods spec.volumes",
    "pods spec.tolerations",
    "pods spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
    "pods spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
    "pods spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "pods spec.topologySpreadConstraints",
    "nodes status.allocatable",
    "apps/replicasets spec.selector.matchExpressions",
    "policy/poddisruptionbudgets spec.selector.matchExpressions",
    "persistentvolumes spec.nodeAffinity.required.nodeSelectorTerms.matchExpressions.values",
    "resourcequotas spec.hard",
    "limitranges spec.limits.default",
    "storage.k8s.io/csistoragecapacities nodeTopology.matchExpressions",
    "storage.k8s.io/csistoragecapacities nodeTopology.matchExpressions.values",
    "groupsnapshot.storage.k8s.io/volumegroupsnapshots spec.source.selector.matchExpressions",
    "services spec.ports",
    "batch/cronjobs spec.schedule",
)
"""Fields that kept others waiting before their values were bounded."""
pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]


def every_field() -> list[KindField]:
    """All fields of all served kinds."""
    return [field for kind in RESOURCES for field in fields(kind)]


def chosen(every: Sequence[KindField], number: int, seed: int) -> list[KindField]:
    """So many fields by chance, after those that are always counted; in the order of kinds."""
    some = [field for field in every if field.name in LISTED]
    assert len(some) == len(LISTED)
    rest = [field for field in every if field.name not in LISTED]
    some += random.Random(seed).sample(rest, min(number, len(rest)))
    return sorted(some, key=lambda field: field.kind)


def kinds(some: Sequence[KindField]) -> Iterator[list[KindField]]:
    """The fields in parts, each for a world of its own."""
    for start in range(0, len(some), 200):
        yield list(some[start : start + 200])


async def costs(some: Sequence[KindField]) -> list[Cost]:
    """The costs of fields, counted in one world."""
    async with world() as here:
        meter = Meter(here, Turns(asyncio.get_running_loop()))
        with meter.counted():
            return [await meter.cost(field) for field in some]


async def test_others_wait_for_no_field(request: pytest.FixtureRequest, tell: Callable[[str], None]) -> None:
    number, seed = (request.config.getoption(option) for option in ("--fields", "--fields-seed"))
    every = every_field()
    some, found = chosen(every, number, seed), list[Cost]()
    for part in kinds(some):
        found += await costs(part)
    admitted = sum(cost.admitted > 0 for cost in found)
    tell(f"cost of fields: {len(some)} of {len(every)} fields of {len(RESOURCES)} kinds (--fields-seed {seed})")
    tell(f"  a value of {admitted} was admitted; the ten that keep the loop longest, by calls and returns:")
    for cost in sorted(found, key=lambda cost: -cost.worst[0])[:10]:
        tell(f"  {cost}")
    slow = [str(cost) for cost in found if cost.worst[0] > MOST_CALLS or cost.apart > MOST_APART]
    assert slow == []


def test_each_kind_has_fields() -> None:
    every = every_field()
    assert {field.kind for field in every} == set(RESOURCES)
    assert len({field.name for field in every}) == len(every)
