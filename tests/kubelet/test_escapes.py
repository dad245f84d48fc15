"""What a container that is root in its pod tries in order to reach the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tonnage.aio.clock import RealClock
from tonnage.kubelet import rootfs
from tonnage.kubelet.bubblewrap import BubblewrapRuntime
from tonnage.kubelet.rootfs import Bind

real = [
    pytest.mark.real,
    pytest.mark.skipif(bool(BubblewrapRuntime.missing()), reason=f"needs {', '.join(BubblewrapRuntime.missing())}"),
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


def _apply(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


def _shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], **more}


@_apply
async def test_sysctls_are_read_only_also_in_a_user_namespace(machine: Any) -> None:
    value = Path("/proc/sys/kernel/core_pattern").read_text().strip()  # should it ever work, nothing changes
    write = f"echo '{value}' > /proc/sys/kernel/core_pattern && echo WRITTEN"
    tries = f"{write}; unshare -Urpf --mount-proc sh -c '{write.replace(chr(39), '')}'; cat /proc/kcore && echo READ"
    await machine.pod("p", restartPolicy="Never", containers=[_shell(f"{tries}; echo end")])
    pod = await machine.phase("p", "Succeeded")
    meta = pod.metadata
    log = machine.root / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / "main" / "0.log"
    assert log.read_text().endswith(" end\n")
    assert "WRITTEN" not in log.read_text()
    assert "READ" not in log.read_text()


@_apply
async def test_a_working_dir_is_never_made_outside_of_its_volume(machine: Any, folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    script = f"pwd > /dev/termination-log; cd /; rm -r /data/x; ln -s /oldroot{outside} /data/x; exit 1"
    await machine.pod(
        "p",
        volumes=[{"name": "data", "emptyDir": {}}],
        containers=[
            _shell(script, workingDir="/data/x/made", volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        ],
    )
    pod = await machine.until("p", lambda p: any(_refused(s) for s in p.status.container_statuses))
    status = pod.status.container_statuses[0]
    assert "workingDir '/data/x/made' leads out of its volume" in status.state.waiting["message"]
    assert list(outside.iterdir()) == []


def _refused(status: Any) -> bool:
    return bool((status.state.waiting or {}).get("reason") == "CreateContainerConfigError")


def test_the_deepest_volume_holds_a_path() -> None:
    outer, inner = Bind("/a", "/data"), Bind("/b", "/data/in")
    assert rootfs.holder([outer, inner], "/data/in/x") is inner
    assert rootfs.holder([outer, inner], "/data/inside") is outer
    assert rootfs.holder([outer, inner], "/database") is None
