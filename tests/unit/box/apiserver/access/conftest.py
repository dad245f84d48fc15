"""An API server with tokens, and clients of its users."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.unit.box.apiserver.access.served import Kubectl, Served, served  # noqa: F401

from tonnage_box.apiserver.server.auth import write_kubeconfig


@pytest.fixture
async def kubectl(served: Served, tmp_path: Path, kubectl_program: str) -> Kubectl:  # noqa: F811
    """kubectl(*arguments, text=stdin, fails=False) -> its output (its complaint, where it is to fail)."""
    write_kubeconfig(tmp_path / "kubeconfig", served.server.url, served.credentials)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    pipe = asyncio.subprocess.PIPE

    async def run(*arguments: str, text: str = "", fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            kubectl_program, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        out, complaint = await process.communicate(text.encode())
        assert (process.returncode != 0) == fails, complaint.decode() or out.decode()
        return (complaint if fails else out).decode()

    return run
