"""Kill drivers over one kind of pool, in a process of its own that has everything loaded and nothing else:

python -m tests.crash.kills.campaign KIND --kills 1000 --seed 1 --folder /some/empty/folder

The last line of the output says in JSON what was done.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.crash.kills import tracer
from tests.crash.kills.kinds import KINDS
from tests.crash.kills.life import Lives

from tonnage.storage.pools.directory.backend import DirectoryBackend


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="kill drivers over one kind of pool")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="number of the first life")
    parser.add_argument("--folder", type=Path, help="an empty folder on the disk to use")
    parser.add_argument("--careless", action="store_true", help="with drivers that do not clean up, to be found out")
    given = parser.parse_args(arguments)
    if reason := tracer.missing():
        print(reason, file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir=given.folder))
    if given.careless:
        setattr(DirectoryBackend, "_discard", lambda _store, _content: None)  # noqa: B010
    machine = KINDS[given.kind].prepare(folder)
    if given.careless:
        machine.patience = 5.0  # what is not cleaned up never goes
    try:
        begun = time.monotonic()
        lives = Lives(KINDS[given.kind], machine, undone=0.8 if given.careless else 0.2)
        lives.learn()
        assert threading.active_count() == 1, "a process with threads must not fork"
        learnt = time.monotonic()
        while lives.tally.kills < given.kills:
            lives.live(given.seed + lives.tally.lives)
        tally = lives.tally
        told = {"kills": tally.kills, "lives": tally.lives, "undone": tally.undone, "ways": tally.ways}
        told |= {"steps": lives.steps, "places": len(tally.places), "tools": tally.tools}
        told |= {"learning": learnt - begun, "seconds": time.monotonic() - learnt}
        print(json.dumps(told))
        return 0
    finally:
        machine.sweep()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
