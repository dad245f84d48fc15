"""`tonnage down`: stops the cluster of a data folder; with --purge removes all that it made."""

from __future__ import annotations

import argparse
from pathlib import Path

from tonnage.base.errors import NotFoundError
from tonnage.tools.cli.output import Output
from tonnage_box.cleanup import clean, remove
from tonnage_box.data_dir import DataFolder, default_folder, no_cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"data folder (default: {default_folder()})")
    parser.add_argument("--purge", action="store_true", help="remove the data folder with all objects and volumes")


def run(options: argparse.Namespace) -> int:
    """Stop the cluster. Idempotent; without --purge all data stays."""
    out = Output()
    data = DataFolder(options.data or default_folder())
    settings = data.settings()  # rejects a folder that is not ours
    if not data.exists():
        if options.purge:
            out.line(f"nothing to remove: {no_cluster(data.path)}")
            return 0
        raise NotFoundError(f"{no_cluster(data.path)}; name its folder with --data")
    if data.end_running():
        out.line("the cluster has ended")
    else:
        out.line(f"no cluster runs in {data.path}")
    with data.held():  # no other process can start the cluster meanwhile
        if options.purge:
            remove(data)
            out.line(f"removed {data.path} with its objects and volumes")
        else:
            from tonnage_box.plan import what_stays  # it imports a box, which takes as long as all else

            clean(data)  # what a killed process left mounted
            stay = what_stays(settings)
            out.line(f"{data.path}: {stay}; `tonnage up` brings back what stays, `tonnage down --purge` removes it")
    return 0
