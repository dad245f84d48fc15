"""`tonnage flexvolume`: install the program that the kubelet runs for manifests with `flexVolume`, or remove it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tonnage.kubernetes.api.names import FLEX_DRIVERS
from tonnage.node.flexvolume.install import PLUGINS, SPOOL, install, uninstall


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("action", choices=("install", "remove"), help="install the program, or remove it")
    parser.add_argument(
        "--dir", type=Path, default=PLUGINS, metavar="DIR",
        help=f"the kubelet's folder, its --volume-plugin-dir (default: {PLUGINS})",
    )  # fmt: skip
    parser.add_argument(
        "--spool",
        type=Path,
        default=SPOOL,
        metavar="DIR",
        help=f"the agent's folder for calls (default: {SPOOL})",
    )
    parser.add_argument(
        "--driver", action="append", choices=FLEX_DRIVERS, help="only this driver; repeatable (default: all of them)"
    )


def run(options: argparse.Namespace) -> int:
    """Install or remove, and print each file that changed."""
    drivers = options.driver or FLEX_DRIVERS
    if options.action == "install":
        for path in install(options.dir, options.spool, drivers):
            print(f"installed {path}")
    else:
        for path in uninstall(options.dir, drivers):
            print(f"removed {path}")
    return 0
