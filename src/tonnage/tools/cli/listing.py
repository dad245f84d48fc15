"""Output of lists: a table, JSON or YAML."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.tools.cli.driver import add_pools
from tonnage.tools.cli.output import Output
from tonnage.tools.ops.sources import Wanted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for source and format."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="a box's data folder (default: as `tonnage up`)")
    parser.add_argument("--endpoint", default="", metavar="unix:///DIR/csi.sock", help="a running driver's socket")
    add_pools(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def add_arguments_again(parser: argparse.ArgumentParser) -> None:
    """Add the same options to a subcommand; values given before it apply unless given again."""
    parser.add_argument("--data", type=Path, metavar="DIR", default=argparse.SUPPRESS)
    parser.add_argument("--endpoint", metavar="unix:///DIR/csi.sock", default=argparse.SUPPRESS)
    parser.add_argument("--pool", action="append", metavar="KIND[:WHERE][,key=value...]", default=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", default=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default=argparse.SUPPRESS)


def wanted(options: argparse.Namespace) -> Wanted:
    """The source, as given."""
    return Wanted(
        options.data, options.endpoint, options.config, options.pool, getattr(options, "kubeconfig", None)
    )  # fmt: skip


def show(form: str, columns: Sequence[str], rows: Sequence[Sequence[str]], document: Any) -> None:
    """Print rows as a table, or the document they were made from."""
    if form == "table":
        Output().table(columns, rows)
    else:
        sys.stdout.write(text(form, document))


def text(form: str, document: Any) -> str:
    """A document as JSON or YAML."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    return msgspec.yaml.encode(document).decode()


def size(number: int | None) -> str:
    """Bytes for people, "-" if unknown."""
    return "-" if number is None else from_bytes(number)
