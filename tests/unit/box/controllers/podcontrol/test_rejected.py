"""Pods that a kubelet does not admit are replaced later and later."""

from __future__ import annotations

import pytest

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodStatus
from tonnage_box.controllers.podcontrol.rejected import Replacements, is_rejected, replacement_wait
from tonnage_box.testing.clock import ManualClock


def _pod(name: str = "p", *, made: float = 0.0, phase: str = "Failed", message: str = "Pod was rejected: x") -> Pod:
    meta = ObjectMeta(name=name, namespace="n", uid=name, creation_timestamp=rfc3339(made))
    return Pod(metadata=meta, status=PodStatus(phase=phase, message=message))


def test_a_pod_that_began_is_not_rejected() -> None:
    assert is_rejected(_pod())
    assert not is_rejected(_pod(phase="Running"))
    assert not is_rejected(_pod(message="The node was low on resource"))


@pytest.mark.parametrize(
    ("count", "wanted", "expected"),
    [
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
        (3, 1, 4),
        (11, 1, 900),
        (5000, 1, 900),
        (3, 3, 1),
        (4, 3, 2),
        (9, 3, 4),
        (1, 0, 1),
    ],
)
def test_the_wait_doubles_with_each_round(count: int, wanted: int, expected: float) -> None:
    pods = [_pod(str(number), made=1000.0) for number in range(count)] + [_pod("runs", made=1000.0, phase="Running")]
    assert replacement_wait(pods, wanted, 1000.0) == expected
    assert replacement_wait(pods, wanted, 1000.0 + expected) == 0.0


def test_a_pod_with_a_name_is_replaced_later_and_later_until_it_begins() -> None:
    clock = ManualClock()
    replacements = Replacements(clock)
    waits = []
    for _ in range(4):
        assert replacements.split([_pod()]) == ([_pod()], None)
        free, wait = replacements.split([_pod(), _pod("evicted", message="")])
        assert [pod.metadata.name for pod in free] == ["evicted"]
        assert wait is not None
        waits.append(wait)
        clock.now += wait
    assert waits == [1.0, 2.0, 4.0, 8.0]
    replacements.forget([_pod(phase="Running")])
    assert replacements.split([_pod()]) == ([_pod()], None)
    assert replacements.split([_pod()])[1] == 1.0
