"""A command that joins a process: here one of the machine's own, so that nothing but the start is tested."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from tests.signal_masks import without_threads

from tonnage.base.errors import HostError, InvalidError
from tonnage_box.kubelet.containers.context import ContainerContext
from tonnage_box.kubelet.containers.exec_process import ExecProcess, JoinRequest, start

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: setns")]


@pytest.fixture
def anchor() -> Iterator[int]:
    """A pidfd of this process."""
    fd = os.pidfd_open(os.getpid())
    yield fd
    os.close(fd)


def context(*, unconfined: bool = False) -> ContainerContext:
    return ContainerContext({"PATH": b"/usr/bin:/bin", "A": b"b"}, "/tmp", 1234, 55, (77,), 0, unconfined)


async def finished(process: ExecProcess) -> tuple[int, bytes]:
    """Exit code and output."""
    process.watch()
    await asyncio.wait_for(process.ended.wait(), 60)
    output = os.read(process.stdout, 1 << 16)
    await process.close()
    return process.code, output


@pytest.mark.parametrize("unconfined", [False, True])
async def test_a_command_runs_with_its_context_only(anchor: int, unconfined: bool) -> None:
    script = "id -u; id -G; pwd; env | sort; grep -E 'CapEff|CapBnd|Seccomp:' /proc/self/status; exit 3"
    request = JoinRequest(["sh", "-c", script], context(unconfined=unconfined), "/", anchor)
    code, output = await finished(await asyncio.to_thread(start, request))
    none = "0000000000000000"
    assert output.decode().split() == [
        "1234", "55", "77", "/tmp", "A=b", "PATH=/usr/bin:/bin", "PWD=/tmp",
        "CapEff:", none, "CapBnd:", none, "Seccomp:", "2",
    ]  # fmt: skip
    assert code == 3


async def test_another_root_is_rejected(anchor: int) -> None:
    with pytest.raises(HostError, match="the root found is not the container's"):
        await asyncio.to_thread(start, JoinRequest(["true"], context(), "/tmp", anchor))


async def test_rejections_leave_no_descriptor(anchor: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for argv in (["no-such"], ["/etc"], ["\0"]):
        with pytest.raises((HostError, InvalidError)):
            start(JoinRequest(argv, context(), "/", anchor, stdin=True))
    process = start(JoinRequest(["cat"], context(), "/", anchor, stdin=True))
    process.watch()
    await process.close()
    assert process.ended.is_set()
    assert process.code == 137
    assert len(os.listdir("/proc/self/fd")) == before


async def test_signals_that_the_kubelet_ignores_are_not_ignored_by_the_command(anchor: int) -> None:
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        request = JoinRequest(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"], context(), "/", anchor)
        _, output = await finished(await asyncio.to_thread(start, request))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert without_threads(output.decode()).split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
