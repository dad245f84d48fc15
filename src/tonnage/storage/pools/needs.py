"""What a machine lacks of what a pool needs. Blocking; read-only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tonnage.host import loop
from tonnage.host.run import PATH
from tonnage.storage.pools.kind import PoolConfig


def lacking(config: PoolConfig) -> Iterator[str]:
    """Yield what is not found, each with what to do; root is not looked at."""
    needs = config.kind.needs(config)
    if needs.loop and not Path(loop.CONTROL).exists():
        yield (
            f"loop devices, and {loop.CONTROL} was not found: load the kernel's module (modprobe loop), in a container"
            " give it the machine's /dev"
        )
    for tool in needs.tools:
        if shutil.which(tool.program, path=PATH) is None:
            yield f"{tool.program}, which was not found (Debian: apt-get install {tool.package})"
