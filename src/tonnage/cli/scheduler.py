"""`tonnage scheduler`: a scheduler for the pods of a Kubernetes cluster that name it, in the foreground."""

from __future__ import annotations

import argparse

from tonnage.api import names
from tonnage.cli import replica
from tonnage.errors import Invalid
from tonnage.scheduler.app import SchedulerConfig, SchedulerProcess
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    replica.add_arguments(parser)
    parser.add_argument(
        "--name", default=names.SCHEDULER, metavar="NAME",
        help="spec.schedulerName of its pods; also the name of the Lease (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--scoring", default=ScoringStrategy.LEAST_ALLOCATED.value, choices=[one.value for one in ScoringStrategy],
        help="scoring of the nodes that fit (default: %(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Stand for election and work, until a signal."""
    config = configured(options)
    return replica.serve(options, "scheduler", config.identity, lambda client: SchedulerProcess(config, client))


def configured(options: argparse.Namespace) -> SchedulerConfig:
    """Configuration from the command line and the environment. Raises Invalid."""
    if not names.is_dns_subdomain(options.name):
        raise Invalid(f"--name {options.name[:80]!r}: want a DNS subdomain, as {names.SCHEDULER}")
    return SchedulerConfig(
        identity=replica.identity_of(options),
        name=options.name,
        namespace=replica.namespace_of(options),
        strategy=ScoringStrategy(options.scoring),
        metrics=replica.metrics_of(options),
    )
