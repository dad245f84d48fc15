"""A container starts when it is let in, and never when the kubelet has ended before."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from tonnage_box.api import pod_security
from tonnage_box.kubelet.containers.start.gate import Gate
from tonnage_box.kubelet.containers.start.machine_code import MACHINES
from tonnage_box.kubelet.containers.start.program import StartPlan, build

EVERY = pod_security.granted({})


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="the program is not for this machine")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: setgroups(2)")
@pytest.mark.parametrize("let_in", [True, False])
def test_the_program_waits_there(tmp_path: Path, *, let_in: bool) -> None:
    program, gate = tmp_path / "start", Gate()
    plan = StartPlan(os.getuid(), os.getgid(), os.getgroups(), ["/bin/echo", "a"], "", EVERY, gate=gate.theirs)
    program.write_bytes(build(plan))
    program.chmod(0o755)
    command = [str(program), "/bin/echo", "a"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[gate.theirs], text=True) as child:
        assert gate.reached()
        if let_in:
            gate.open()
        gate.close()
        assert child.communicate(timeout=60)[0] == ("a\n" if let_in else "")
    assert child.returncode == (0 if let_in else 125)


def test_nobody_comes() -> None:
    gate = Gate()
    assert not gate.reached()
    gate.close()
    gate.close()
