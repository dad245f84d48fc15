"""Builds of a tag in a clone of their own, so that nothing of the tree that is worked in gets into a release."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.release.tag import Rejected, Tag, git


def build(
    root: Path,
    tag: Tag,
    into: Path,
    architectures: Sequence[str],
    *,
    before: Callable[[Path], None] = lambda clone: None,
    start: Sequence[str] = (),
    environ: Mapping[str, str] = {},
    umask: int = 0o022,
) -> None:
    """Build a tag's files into an empty folder. before: called with the clone. start: words before the command.
    environ: more variables. Blocking. Raises Rejected."""
    with _clone(root, tag) as clone:
        before(clone)
        words = [f"--into={into}", f"--commit={tag.commit}", *(f"--architecture={one}" for one in architectures)]
        variables = {
            **os.environ,
            "PYTHONPATH": f"{clone}/src:{clone}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SOURCE_DATE_EPOCH": str(tag.time),
            **environ,
        }
        ended = subprocess.run(
            [*start, sys.executable, "-m", "deploy.release.build", *words],
            cwd=clone, env=variables, umask=umask, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    if ended.returncode:
        raise Rejected(f"{tag.name}: not built: {ended.stderr.strip()[-1000:]}")


@contextmanager
def _clone(root: Path, tag: Tag) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tonnage-release-") as folder:
        clone = Path(folder) / "tonnage"
        git(root, "clone", "--quiet", "--shared", "--no-checkout", str(root), str(clone))
        git(clone, "checkout", "--quiet", "--detach", tag.commit)
        yield clone
