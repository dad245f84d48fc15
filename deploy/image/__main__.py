"""`python -m deploy.image`: builds the container image, prints its size and digest. `make image` calls it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.image.archive import ARCHITECTURES
from deploy.image.build import build
from deploy.image.debian import Missing
from deploy.image.python import Broken

from tonnage.tools.ops.install.options import IMAGE


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description="Build tonnage's container image.")
    parser.add_argument("--name", default=IMAGE, help="with its tag (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("dist/tonnage.tar"), help="the archive (default: %(default)s)"
    )
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES), default="", help="default: this machine's")
    options = parser.parse_args()
    try:
        made = build(options.output, options.name, architecture=options.architecture)
    except (Missing, Broken, ValueError) as failure:
        print(f"image: {failure}", file=sys.stderr)
        return 1
    print(f"{made.file}  {made.size / 2**20:.1f} MiB\n{made.name}  {made.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
