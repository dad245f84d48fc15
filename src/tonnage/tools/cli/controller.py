"""`tonnage controller`: cluster-wide control loops of an installation on Kubernetes, in the foreground."""

from __future__ import annotations

import argparse

from tonnage.controller.app import controller_process
from tonnage.controller.config import ControllerConfig
from tonnage.tools.cli import replica


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    replica.add_arguments(parser, ControllerConfig)


def run(options: argparse.Namespace) -> int:
    """Stand for election and work, until a signal."""
    return replica.serve(options, "controller", replica.configured(options, ControllerConfig), controller_process)
