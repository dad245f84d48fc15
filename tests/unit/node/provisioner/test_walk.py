"""The walk of a claim through the agent's code passes the files that docs/architecture.md names, in that order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.docs.pages import walks

import tonnage
from tonnage.node.provisioner import controller

pytestmark = pytest.mark.virtual_time
SOURCE = Path(tonnage.__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "architecture.md"
FOLDERS = tuple(f"{SOURCE / name}/" for name in ("node", "claims", "capacity"))


def _is_of_the_claim(frame: FrameType | None) -> bool:
    """Whether the provisioner's controller is on the stack: the other tasks of the agent are not part of the walk."""
    while frame is not None and frame.f_code.co_filename != controller.__file__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def _entered() -> Iterator[list[str]]:
    """The files that the walk enters meanwhile, each once."""
    files: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file not in files and file.startswith(FOLDERS) and _is_of_the_claim(frame):
            files.append(file)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(before)


async def test_a_claim_passes_the_files_of_its_walk(make_node: Any, make_claim: Any, eventually: Any) -> None:
    node = await make_node()
    await eventually(lambda: node.shows("30716Mi", "30716Mi"))
    await make_claim("data", "1Gi", storageClassName="late")
    await asyncio.sleep(2)
    with _entered() as files:
        await node.send("data")
        await eventually(lambda: node.bound("data"))
    assert [f"src/tonnage/{Path(file).relative_to(SOURCE)}" for file in files] == walks(PAGE)["a claim"]


async def test_a_claim_of_a_pod_passes_the_same_files(make_node: Any, scratch_pod: Any, eventually: Any) -> None:
    node = await make_node()
    await eventually(lambda: node.shows("30716Mi", "30716Mi"))
    await scratch_pod("app", "1Gi")
    await asyncio.sleep(2)
    with _entered() as files:
        await node.send("app-v0")
        await eventually(lambda: node.bound("app-v0"))
    assert {f"src/tonnage/{Path(file).relative_to(SOURCE)}" for file in files} == set(walks(PAGE)["a claim"])
