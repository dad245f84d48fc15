"""`make test-upstream-box`: Kubernetes' own External Storage tests against a box, with the driver file of real clusters.

Two nodes in one process; containers run from the suite's images. Tests that need what the box does not have are left out
by box-excluded.txt, with the reason. Writes its table into docs/conformance.md. Ends with 1 where a test failed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from cluster import programs
from tests.upstream import ginkgo, images, results
from tests.upstream.driver import ATTRIBUTES, driver, ungrown
from tests.upstream.ginkgo import Part
from tests.upstream.programs import ensure

EXCLUDED = Path(__file__).with_name("box-excluded.txt")
PARTS = (
    Part("main", r"External.Storage", (r"\[Slow\]", r"\[Feature:")),
    Part("slow", r"External.Storage.*\[Slow\]", (r"\[Feature:",)),
    Part("features", r"External.Storage.*\[Feature:", ()),
)
SIZE = "24Gi"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream.box", description=__doc__)
    parser.add_argument("--focus", help="a regular expression of tests, instead of the parts")
    parser.add_argument("--reports", type=Path, default=Path("dist/upstream/box"), help="where JUnit files and logs go")
    options = parser.parse_args()
    parts = [Part("focus", options.focus, (), must_pass=True)] if options.focus else list(PARTS)
    try:
        programs.ensure()
        suite = ensure()
    except (programs.Missing, RuntimeError) as failure:
        print(f"test-upstream-box: {failure}", file=sys.stderr)
        return 1
    failed = _run(parts, suite, options.reports.absolute())
    if not options.focus:
        results.document_box(
            options.reports, Path("docs/conformance.md"), programs.version(), [part.name for part in PARTS]
        )
    return 1 if failed else 0


def excluded() -> str:
    """The regular expression of the tests that are left out."""
    lines = EXCLUDED.read_text(encoding="utf-8").splitlines()
    return "|".join(line for line in lines if line and not line.startswith("#"))


def _run(parts: list[Part], suite: Path, reports: Path) -> int:
    """Run the parts; the number of failures."""
    reports.mkdir(parents=True, exist_ok=True)
    failed = 0
    with _box(suite, reports) as kubeconfig:
        for part in parts:
            (reports / f"{part.name}.xml").unlink(missing_ok=True)
            began = time.monotonic()
            code = ginkgo.run(part, suite, reports, kubeconfig, [excluded(), *ungrown()], {})
            found = results.judge(reports / f"{part.name}.xml", code, must_pass=part.must_pass)
            failed += found.failures
            print(f"box: {part.name}: {found.line()}, {(time.monotonic() - began) / 60:.0f} min", flush=True)
            for name in found.failed:
                print(f"  failed: {name}", flush=True)
    return failed


@contextlib.contextmanager
def _box(suite: Path, reports: Path) -> Iterator[Path]:
    """A box of two nodes that has the suite's images; its kubeconfig. Raises CalledProcessError."""
    folder = Path(tempfile.mkdtemp(prefix="tonnage-upstream-", dir="/var/tmp"))
    archives = folder / "archives"
    archives.mkdir()
    images.build(archives, suite)
    (reports / "registries.yaml").write_text(yaml.safe_dump(dict(images.registries())))
    (reports / "driver.yaml").write_text(yaml.safe_dump(dict(driver("ext4", programs.version()))))
    cli = [sys.executable, "-m", "tonnage"]
    data = ["--data", str(folder / "data")]
    pool = f"image:{folder}/pool,name=scratch,size={SIZE},sparse=yes,overcommit=yes"
    up = ["up", "--nodes", "2", "--pool", pool, "--port", "0", "--images", str(archives), "--detach", *data]
    try:
        subprocess.run([*cli, *up], check=True)
        kubeconfig = folder / "data" / "kubeconfig"
        apply = [str(programs.kubectl()), f"--kubeconfig={kubeconfig}", "apply", "-f", "-"]
        subprocess.run(apply, input=yaml.safe_dump(dict(ATTRIBUTES)), text=True, check=True)
        yield kubeconfig
        shutil.copy(folder / "data" / "tonnage.log", reports / "tonnage.log")
    finally:
        subprocess.run([*cli, "down", "--purge", *data], check=False)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
