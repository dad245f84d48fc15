"""`tonnage pools init` and `tonnage pools extend`: pools on devices. Prints the commands; --yes runs them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tonnage.base.errors import HostError
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import device_setup
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The two actions."""
    init = actions.add_parser("init", help="create a pool on devices: shows the commands, --yes runs them")
    init.add_argument("--fstype", default="", metavar="TYPE", help="of an image or quota pool: xfs (default) or ext4")
    init.add_argument("--data", dest="profile", default="single", metavar="PROFILE",
                      help="of btrfs on several devices: single (default), raid1 or raid10")  # fmt: skip
    extend = actions.add_parser("extend", help="add devices to a pool, or use the new capacity of grown devices")
    for action, how_many in ((init, "+"), (extend, "*")):
        action.add_argument("pool", metavar="KIND:WHERE", help="as lvm:GROUP, btrfs:/mnt/fast, quota:/mnt/scratch")
        action.add_argument("devices", nargs=how_many, type=Path, metavar="DEVICE")
        action.add_argument("--yes", action="store_true", help="run the commands; without it nothing is changed")


def run(options: argparse.Namespace) -> int:
    """Plan, print, and with --yes run the commands. Idempotent."""
    config = pool_config.parse(options.pool)
    if os.geteuid() != 0 and (options.yes or (config.kind.setup is not None and config.kind.setup.reads_as_root)):
        raise HostError("devices and volume groups belong to root: run it as root (sudo)")
    plan = _plan(options, config)
    if not plan.steps:
        print(f"pool {options.pool}: nothing to do, all of it exists")
    elif not options.yes:
        print("Commands to run (nothing was changed; --yes runs them):")
        for step in plan.steps:
            print(f"    {step}")
        return 0
    plan.run(_print_step)
    for line in _plan(options, config).next or plan.next:  # again: a new file system has its UUID now
        print(f"next: {line}")
    return 0


def _plan(options: argparse.Namespace, config: PoolConfig) -> PoolSetupPlan:
    if options.action == "init":
        return device_setup.plan_init(config, options.devices, fstype=options.fstype, data=options.profile)
    return device_setup.plan_extend(config, options.devices)


def _print_step(step: Step) -> None:
    print(f"done: {step}")
