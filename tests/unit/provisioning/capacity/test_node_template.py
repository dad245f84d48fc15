"""Capacity objects of template nodes."""

from __future__ import annotations

import msgspec
import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity.node_template import (
    MANAGED_BY,
    TemplateCapacity,
    capacity_of,
    groups_of,
    is_template,
    without_nodes_since,
)

GROUP = {names.TEMPLATE_NODE: "true", "pool": "large"}


def template(
    selected: dict[str, str], writer: str = MANAGED_BY, *, since: str = "", **numbers: str
) -> CSIStorageCapacity:
    notes = {names.WITHOUT_NODES_SINCE: since} if since else {}
    head = {"name": "t", "labels": {names.CAPACITY_MANAGED_BY: writer}, "annotations": notes}
    body = {"metadata": head, "storageClassName": "fast", "nodeTopology": {"matchLabels": selected}, **numbers}
    return CAPACITIES.decode(msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("selected", "writer", "groups"),
    [
        (GROUP, MANAGED_BY, ["pool=large"]),
        (GROUP, "tonnage-n1", []),
        ({"pool": "large"}, MANAGED_BY, []),
        ({**GROUP, names.TEMPLATE_NODE: "false"}, MANAGED_BY, []),
    ],
)
def test_only_ours_that_select_template_nodes(selected: dict[str, str], writer: str, groups: list[str]) -> None:
    found = template(selected, writer)
    assert is_template(found) is bool(groups)
    assert groups_of(found) == groups


def test_capacity_of_a_new_node() -> None:
    assert capacity_of(template(GROUP, capacity="2Ki")) == TemplateCapacity(2048, 2048)
    assert capacity_of(template(GROUP, capacity="2Ki", maximumVolumeSize="1Ki")) == TemplateCapacity(2048, 1024)


def test_since_when_the_group_is_empty() -> None:
    assert without_nodes_since(template(GROUP, since="1970-01-01T00:01:00Z")) == 60.0
    assert without_nodes_since(template(GROUP)) is None
    assert without_nodes_since(template(GROUP, since="yesterday")) is None
