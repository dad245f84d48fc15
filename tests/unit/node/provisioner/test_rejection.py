"""What it costs to tell of claims that can never have a volume."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.unit.node.provisioner.contexts import context

from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.meta import ObjectMeta, OwnerReference
from tonnage.node.provisioner.rejection import report
from tonnage_box.testing.clock import ManualClock

HOURS = 3


class Told:
    """Counts Events by whom they are about."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def warning(self, about: Any, reason: str, message: str) -> None:
        """One Event."""
        self.names[about.name] += 1


def claim(number: int) -> PersistentVolumeClaim:
    owner = OwnerReference(api_version="v1", kind="Pod", name="app", uid="pod-1", controller=True)
    name = f"app-v{number}"
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{number}", owner_references=[owner])
    )


@pytest.mark.parametrize("count", [1, 2, 8, 20])
async def test_all_claims_of_a_pod_together_stay_under_a_write_a_minute(count: int) -> None:
    clock, told = ManualClock(), Told()
    node = context(events=told, clock=clock)
    claims = [claim(number) for number in range(count)]
    first: Counter[str] = Counter()

    for second in range(0, HOURS * 3600, 10):
        clock.now = float(second)
        for each in claims:
            await report(node, each, "it cannot be")
        if second == 300:
            first = told.names.copy()

    assert min(first[each.metadata.name] for each in claims) >= 1, "told at once"
    later = told.names - first
    assert min(later[each.metadata.name] for each in claims) >= 1, "told again, since Events expire"
    assert later.total() <= (HOURS * 60 - 5) + 2 * count
