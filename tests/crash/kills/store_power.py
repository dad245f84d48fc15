"""Power cuts of the disk of an image store (see power.py for how): images are loaded, pulled again, and removed:

python -m tests.crash.kills.store_power --cuts 100 --seed 1 --folder /some/empty/folder

After each cut an image that was answered is whole, no name shows half an image, and a load goes on. The last line of
the output says in JSON what was done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.kills.fusedisk import Disk
from tests.crash.kills.machine import MI, Machine
from tests.crash.kills.power import POWERED, Cuts, powered

from tonnage.base.errors import NotFoundError
from tonnage.host import libc
from tonnage.host.run import run
from tonnage.storage.images.store import ImageStore
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

KIND = replace(POWERED["image on ext4"], given=128)
SHARED = LayerTar().folder("d").add("d/shared", b"s" * 70_000).data()
IMAGES = {name: [SHARED, LayerTar().add("own", name.encode() * 9000).data()] for name in ("one:1", "two:1", "one:2")}
STEPS = (("load", "one:1"), ("load", "two:1"), ("remove", "one:1"), ("load", "one:2"), ("remove", "two:1"))


@dataclass
class Life:
    """Steps on a store, and after how much of the disk's log each was answered."""

    folder: Path
    answered: list[int] = field(default_factory=lambda: [0])

    def archive(self, name: str) -> Path:
        """An image's archive, outside of the disk."""
        return self.folder / f"{name.replace(':', '-')}.tar"

    def live(self, disk: Disk) -> None:
        """Take all steps."""
        store = ImageStore(self.folder / "disk" / "store")
        for step, name in STEPS:
            if step == "load":
                store.load(self.archive(name))
            else:
                store.remove(name)
            self.answered.append(disk.written)

    def check(self, at: int) -> None:
        """What a store that was cut there must have, and what a load makes of it."""
        done = sum(found <= at for found in self.answered) - 1
        there = {name for step, name in STEPS[:done] if step == "load"}
        there -= {name for step, name in STEPS[:done] if step == "remove"}
        under_way = {STEPS[done][1]} if done < len(STEPS) else set()
        store = ImageStore(self.folder / "disk" / "store")
        assert store.damaged() == []
        names = {record.name.removeprefix("docker.io/library/") for record in store.images()}
        assert there - under_way <= names <= there | under_way, f"{names} after {done} steps"
        for name in names:
            _check(store, name)
        for name in IMAGES:
            store.load(self.archive(name))
            _check(store, name)


def _check(store: ImageStore, name: str) -> None:
    """An image is whole."""
    record = store.find(name)
    if record is None:
        raise NotFoundError(name)
    lower, upper = (store.layer(chain) for chain in record.layers)
    assert (lower / "d" / "shared").read_bytes() == b"s" * 70_000, f"{name} has half a layer"
    assert (upper / "own").read_bytes() == name.encode() * 9000, f"{name} has half a layer"


def campaign(folder: Path, count: int, seed: int) -> int:
    """Cut so many times, and return how many cuts there were. Raises AssertionError with the cut that lost something."""
    life, blank, log, chance = Life(folder), folder / "blank", folder / "log", random.Random(seed)
    for name in ("disk", "fuse"):
        (folder / name).mkdir()
    for name, layers in IMAGES.items():
        life.archive(name).write_bytes(made.archive(made.layout(layers, name=name)))
    blank.touch()
    os.truncate(blank, KIND.given * MI)
    run([*KIND.disk, str(blank)])
    with powered(KIND, folder, blank, log=log) as disk:
        life.live(disk)
    cuts = Cuts(log, blank)
    try:
        chosen = cuts.choose(count, chance)
        for number in chosen:
            changes, what = cuts.make(number, chance)
            try:
                with powered(KIND, folder, cuts.base, changes):
                    life.check(cuts.at(number))
            except BaseException as failure:
                failure.add_note(f"power was cut {what}")
                raise
        return len(chosen)
    finally:
        cuts.close()


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="cut the power of an image store's disk")
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder on the disk to use")
    parser.add_argument("--forgetful", action="store_true", help="without flushes, to be found out")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="power-", dir=given.folder))
    if given.forgetful:
        libc.syncfs = os.fsync = lambda _fd: None  # type: ignore[assignment]
    try:
        print(json.dumps({"cuts": campaign(folder, given.cuts, given.seed)}))
        return 0
    finally:
        Machine(folder, folder / "disk").sweep()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
