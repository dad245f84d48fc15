"""`tonnage scheduler`: a scheduler for the pods of a Kubernetes cluster that name it, in the foreground."""

from __future__ import annotations

import argparse

from tonnage.scheduler.app import SchedulerConfig, scheduler_process
from tonnage.tools.cli import replica


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    replica.add_arguments(parser, SchedulerConfig)


def run(options: argparse.Namespace) -> int:
    """Stand for election and work, until a signal."""
    return replica.serve(options, "scheduler", replica.configured(options, SchedulerConfig), scheduler_process)
