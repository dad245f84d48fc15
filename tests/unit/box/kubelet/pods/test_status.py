"""Pod status."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.client import StrategicPatch
from tonnage_box.kubelet.containers.runtime import ContainerSpec, NoneRuntime, OnExit, Pretended


async def test_a_pod_with_a_finalizer_does_not_say_running_after_its_end(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    await machine.client.patch(PODS, "p", {"metadata": {"finalizers": ["example.org/keep"]}}, "default")
    await machine.client.delete(PODS, "p", "default")
    await machine.until("p", lambda p: p.terminated)
    await machine.client.patch(PODS, "p", {"metadata": {"finalizers": []}}, "default")
    await machine.gone("p")


class _Watched(NoneRuntime):
    """Keeps what it started, so that a test may end it."""

    def __init__(self) -> None:
        super().__init__(RealClock())
        self.made: list[Pretended] = []

    async def start(self, spec: ContainerSpec, on_exit: OnExit) -> Pretended:
        self.made.append(await super().start(spec, on_exit))
        return self.made[-1]


@pytest.mark.parametrize("machine", [lambda root: _Watched()], indirect=True)
async def test_what_ends_while_its_start_is_written_is_told(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container of a short job may be over before the API server has taken in that it runs."""
    patch, runtime = machine.client.patch, machine.kubelet.runtime

    async def slow(kind: Any, name: str, body: Any, *args: Any, **more: Any) -> Any:
        written = await patch(kind, name, body, *args, **more)
        if kind is PODS and body.get("status", {}).get("phase") == "Running":
            runtime.made[0].stop(0)
        return written

    monkeypatch.setattr(machine.client, "patch", slow)
    await machine.pod("p", restartPolicy="Never")
    pod = await machine.phase("p", "Succeeded")
    assert pod.status.container_statuses[0].state.terminated["reason"] == "Completed"


async def test_a_pod_is_ready_when_its_gates_are(machine: Any) -> None:
    """Somebody else sets their conditions; containers are ready all the while."""
    await machine.pod("p", readinessGates=[{"conditionType": "example.org/a"}, {"conditionType": "example.org/b"}])

    def conditions(pod: Any) -> dict[str, Any]:
        return {condition.type: condition for condition in pod.status.conditions}

    async def put(status: str, *names: str) -> None:
        body = StrategicPatch(
            status={"conditions": [{"type": f"example.org/{name}", "status": status} for name in names]}
        )
        await machine.client.patch(PODS, "p", body, "default", subresource="status")

    pod = await machine.until(
        "p", lambda p: any((c.type, c.status) == ("ContainersReady", "True") for c in p.status.conditions)
    )
    ready = conditions(pod)["Ready"]
    assert (ready.status, ready.reason) == ("False", "ReadinessGatesNotReady")
    await put("False", "a")
    wanted = (
        'the status of pod readiness gate "example.org/a" is not "True", but False; '
        'corresponding condition of pod readiness gate "example.org/b" does not exist.'
    )
    await machine.until("p", lambda p: conditions(p)["Ready"].message == wanted)
    await put("True", "a", "b")
    await machine.until("p", lambda p: conditions(p)["Ready"].status == "True")
    await put("False", "b")
    await machine.until("p", lambda p: conditions(p)["Ready"].status == "False")


async def test_a_condition_that_another_sets_meanwhile_stays(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet has not seen it yet when it writes its own, and a reason of its own that is over goes."""
    patch, others = machine.client.patch, {"type": "example.org/mark", "status": "True"}
    written: list[dict[str, str]] = []

    async def late(kind: Any, name: str, body: Any, *args: Any, **more: Any) -> Any:
        if kind is PODS and not written:
            stale = {"type": "Ready", "status": "False", "reason": "Stale", "message": "over"}
            written.extend([others, stale])
            await patch(PODS, name, {"status": {"conditions": written}}, "default", subresource="status")
        return await patch(kind, name, body, *args, **more)

    monkeypatch.setattr(machine.client, "patch", late)
    await machine.pod("p")
    pod = await machine.phase("p", "Running")
    conditions = {condition.type: condition for condition in pod.status.conditions}
    assert conditions["example.org/mark"].status == "True"
    assert (conditions["Ready"].status, conditions["Ready"].reason, conditions["Ready"].message) == ("True", "", "")
