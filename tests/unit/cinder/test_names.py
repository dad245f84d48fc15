"""What requests name: sizes and the ids of nodes."""

from __future__ import annotations

import json

import pytest

from tonnage.base.errors import InvalidError, NotFoundError, OutOfRangeError
from tonnage.cinder.names import LONGEST_NODE_ID, connector, gibibytes, node_id, wanted
from tonnage.csi._proto import csi_pb2

GI = 1 << 30


@pytest.mark.parametrize(
    ("required", "limit", "least", "size"), [(0, 0, 1, 1), (1, 0, 1, 1), (GI + 1, 2 * GI, 1, 2), (GI, 0, 3, 3)]
)
def test_sizes_are_rounded_up(required: int, limit: int, least: int, size: int) -> None:
    assert gibibytes(csi_pb2.CapacityRange(required_bytes=required, limit_bytes=limit), least) == size


def test_sizes_that_are_rejected() -> None:
    with pytest.raises(OutOfRangeError):
        gibibytes(csi_pb2.CapacityRange(required_bytes=GI + 1, limit_bytes=2 * GI - 1))
    with pytest.raises(InvalidError):
        gibibytes(csi_pb2.CapacityRange(required_bytes=-1))


def test_a_node_id_is_read_again() -> None:
    properties = {"host": "n", "initiator": "iqn", "ip": "10.0.0.1", "nqn": "", "multipath": False}
    text = node_id(properties, ("host", "initiator", "nqn"))
    assert json.loads(text) == {"host": "n", "initiator": "iqn"}
    found = connector(text)
    assert (found["host"], found["initiator"], found["multipath"], found["node"]) == ("n", "iqn", False, text)


def test_node_ids_that_are_rejected() -> None:
    with pytest.raises(InvalidError, match=f"Kubernetes stores {LONGEST_NODE_ID}; name fewer keys"):
        node_id({"host": "n" * 200}, ("host",))
    for text in ("node-1", "[]", "{}", '{"host":""}'):
        with pytest.raises(NotFoundError):
            connector(text)


def test_the_first_back_end_is_the_default() -> None:
    assert wanted({"qos_a": "1"}, ["x", "y"]).backend == "x"
    with pytest.raises(InvalidError, match="unknown parameter 'qos_': known are backend, backend-pool, qos_"):
        wanted({"qos_": "1"}, ["x"])
