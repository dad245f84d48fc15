"""The command line in a copy of the test's process, which has everything imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.forked import forked

from tonnage.tools.cli.main import main
from tonnage_box.cli import up as _up  # noqa: F401  loaded before copies are made


def tonnage(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a copy of this process. Not for what stays in the background: it would be a copy, too."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def run() -> int:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            return code

        code, returned = forked(run)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code or returned, out.read(), err.read())
