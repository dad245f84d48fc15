"""Commands in containers that are not there, or cannot be told to run. Real ones are run by the tests of probes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest

from tonnage.api.pods import Container, Pod
from tonnage.box.kubelet.containers import inside, rootfs
from tonnage.errors import HostError, InvalidError, UnsupportedError


@pytest.fixture
def target() -> Iterator[inside.Inside]:
    """A process of this machine, as if it were a container's."""
    with subprocess.Popen(["sleep", "1000"], env={"A": "b=c"}) as child:
        pidfd = os.pidfd_open(child.pid)
        yield inside.Inside(Pod(), Container(name="c"), child.pid, pidfd)
        os.close(pidfd)
        child.kill()


def test_all_capabilities_have_a_number() -> None:
    assert set(inside._CAPABILITY_NUMBERS) == set(rootfs.CAPABILITIES)


def test_an_argument_with_nul_is_refused(target: inside.Inside) -> None:
    with pytest.raises(InvalidError):
        target.request(["a\0b"])


def test_a_process_that_is_gone_is_no_container() -> None:
    with pytest.raises(HostError, match="not running"):
        inside.Inside(Pod(), Container(name="c"), 0, -1).request(["true"])


def test_a_privileged_container_is_refused(target: inside.Inside) -> None:
    privileged = Container(security_context=Container().security_context.__class__(privileged=True))
    with pytest.raises(UnsupportedError):
        inside.Inside(Pod(), privileged, target.pid, target.pidfd).request(["true"])


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_runs_with_the_processes_environment(target: inside.Inside) -> None:
    assert await inside.run(target, ["sh", "-c", "echo $A; exit 3"], timeout=60, limit=100) == (3, b"b=c\n")


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_says_what_cannot_be_executed(target: inside.Inside) -> None:
    code, output = await inside.run(target, ["no-such-thing"], timeout=60, limit=1000)
    assert (code, output) == (127, b'exec: "no-such-thing": no such file or directory\n')
    assert (await inside.run(target, ["/etc/passwd"], timeout=60, limit=0)) == (126, b"")


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_a_cancelled_command_is_killed(target: inside.Inside) -> None:
    running = asyncio.ensure_future(inside.run(target, ["sleep", "98765"], timeout=None, limit=0))
    while not _sleeping():
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    while _sleeping():
        await asyncio.sleep(0.01)


def _sleeping() -> bool:
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read() == b"sleep\x0098765\x00":
                    return True
        except OSError:
            continue
    return False
