"""`tonnage cinder`: a CSI driver over the drivers of OpenStack Cinder, in the foreground. Experimental."""

from __future__ import annotations

import argparse
import asyncio

from tonnage.base import option
from tonnage.base.errors import InvalidError
from tonnage.base.observe import log as logs
from tonnage.cinder.driver import CinderConfig, CinderDriver
from tonnage.tools.cli.driver import add_log_arguments, serve_until_signal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    option.add_arguments(parser, CinderConfig)
    add_log_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    values = option.read(CinderConfig, option.given_by(options))
    if "endpoint" not in values:
        raise InvalidError("--endpoint is missing: where should the driver listen?")
    config = CinderConfig(**values)
    logs.setup(options.log_level, as_json=options.log_format == "json")
    asyncio.run(serve_until_signal(CinderDriver(config), f"driver={config.driver_name}"))
    return 0
