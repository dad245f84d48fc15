"""A claim that says it has no siblings: nobody is asked. The tests of withdrawal tell of all else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.node.provisioner.contexts import context

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.node.provisioner.claim_group import GroupFinder

pytestmark = pytest.mark.virtual_time


class _Asked(Exception):
    """The API server was asked."""


class _Nobody:
    async def get(self, *arguments: Any) -> Any:
        raise _Asked


@pytest.fixture
def finder() -> GroupFinder:
    """With an API server that must not be asked."""
    return GroupFinder(context(client=_Nobody()))


def _claim(alone: str, *, owned: bool = True) -> PersistentVolumeClaim:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": "pod-1", "controller": True}
    meta = {"name": "app-disk", "namespace": "default", "uid": "claim-1", "annotations": {names.SINGLE_CLAIM: alone}}
    return msgspec.convert({"metadata": {**meta, "ownerReferences": [owner] if owned else []}}, PersistentVolumeClaim)


async def test_a_claim_that_is_alone_asks_for_nobody(finder: GroupFinder) -> None:
    group = await finder.of(_claim("claim-1"))
    assert (group.id, group.claims, group.missing) == ("pod-1", ("default/app-disk",), ())
    assert group.pod is not None
    assert (group.pod.kind, group.pod.name, group.pod.uid) == ("Pod", "app", "pod-1")


@pytest.mark.parametrize("alone", ["", "true", "claim-2"], ids=["nothing", "of a template", "of another claim"])
async def test_what_was_not_written_for_this_claim_says_nothing(finder: GroupFinder, alone: str) -> None:
    with pytest.raises(_Asked):
        await finder.of(_claim(alone))
