"""Pod status."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.aio.clock import RealClock
from tonnage.api.kinds import PODS
from tonnage.box.kubelet.containers.runtime import ContainerSpec, NoneRuntime, OnExit, Pretended


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
