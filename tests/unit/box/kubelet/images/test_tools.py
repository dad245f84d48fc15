"""The machine's tools inside an image."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.programs import found, needs_containers

from tonnage.box.kubelet.images import tools
from tonnage.errors import HostError


def test_the_linker_of_a_program() -> None:
    assert Path(tools.interpreter("/usr/bin/env")).exists()


@pytest.mark.real
def test_a_static_program_has_none() -> None:
    busybox = str(found("busybox"))
    if "not a dynamic" not in subprocess.getoutput(f"ldd {busybox}"):
        pytest.skip("needs a static busybox (Debian: apt-get install busybox-static)")
    assert tools.interpreter(busybox) == ""


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01" + bytes(60)])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(HostError, match="is not an ELF program"):
        tools.interpreter(str(tmp_path / "p"))


@pytest.mark.real
@needs_containers
def test_what_they_need_is_bound_read_only() -> None:
    found = tools.tools()
    targets = {bind.target for bind in found.binds}
    assert {found.env[-1], found.setpriv[-1]} <= targets
    assert all(bind.read_only and Path(bind.source).is_file() for bind in found.binds)
