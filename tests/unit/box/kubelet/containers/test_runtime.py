"""The runtime that runs no processes: what it reports of containers."""

from __future__ import annotations

import msgspec
import pytest

from tonnage.kubernetes.api.pods import Container, Pod, PodSpec, PodStatus
from tonnage_box.kubelet.containers.runtime import ContainerSpec, Ended, NoneRuntime
from tonnage_box.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("container", "is_over"),
    [
        (Container(name="main"), False),
        (Container(name="init"), True),
        (Container(name="sidecar", restart_policy="Always"), False),
    ],
)
async def test_init_containers_end_at_once_and_others_when_they_are_stopped(
    container: Container, is_over: bool
) -> None:
    ends: list[str] = []
    inits = [Container(name="init"), Container(name="sidecar", restart_policy="Always")]
    pod = Pod(spec=PodSpec(containers=[Container(name="main")], init_containers=inits))
    process = await NoneRuntime(ManualClock()).start(ContainerSpec(pod, container), lambda: ends.append("ended"))
    assert (process.ended is not None) is is_over
    process.stop(30)
    process.stop(0)
    assert process.ended is not None
    assert (process.ended.code, process.ended.why) == (0, "Completed")
    assert ends == ([] if is_over else ["ended"])


async def test_after_a_restart_it_trusts_the_status() -> None:
    running = {"name": "a", "restartCount": 2, "state": {"running": {"startedAt": "1970-01-01T00:00:10Z"}}}
    over = {"exitCode": 3, "reason": "Error", "finishedAt": "1970-01-01T00:00:20Z", "startedAt": "yesterday"}
    statuses = [running, {"name": "b", "state": {"terminated": over}}, {"name": "c", "state": {"waiting": {}}}]
    pod = Pod(status=msgspec.convert({"containerStatuses": statuses}, PodStatus))
    found = await NoneRuntime(ManualClock()).adopt("u", pod, lambda: None)
    assert [(one.name, one.attempt, one.process.ended) for one in found] == [
        ("a", 2, None),
        ("b", 0, Ended(3, 20.0, "Error")),
    ]
    assert found[0].process.started == 10.0
    assert await NoneRuntime(ManualClock()).adopt("u", None, lambda: None) == []


@pytest.mark.parametrize(
    ("ended", "why"), [(Ended(0, 0), "Completed"), (Ended(1, 0), "Error"), (Ended(1, 0, "OOMKilled"), "OOMKilled")]
)
def test_a_terminated_state_has_a_reason(ended: Ended, why: str) -> None:
    assert ended.why == why
