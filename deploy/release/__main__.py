"""`python -m deploy.release`: makes a release of a tag, builds it twice, or verifies its files."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.release import clone, signature, sums, tag, twice, verify
from deploy.release.build import ARCHITECTURES, ROOT
from deploy.release.tag import Rejected


def make(version: str, key: Path, output: Path, architectures: Sequence[str], *, root: Path = ROOT) -> Path:
    """Make, sign and verify a release; its folder. Blocking, for minutes. Raises Rejected."""
    found = tag.check(root, version)
    signature.signer(key, root / signature.SIGNERS)
    folder = output.resolve() / found.name
    if folder.exists():
        raise Rejected(f"{folder}: exists: a release is made once; publish it, or remove the folder if nobody has it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{found.name}-", dir=folder.parent) as temporary:
        unfinished = Path(temporary) / found.name
        unfinished.mkdir()
        clone.build(root, found, unfinished, architectures)
        signature.sign(sums.write(unfinished), key)
        if wrong := list(verify.faults(unfinished, root / signature.SIGNERS)):
            raise Rejected("\n".join(wrong))
        unfinished.rename(folder)
    return folder


def _make(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    folder = make(options.version, options.key.expanduser(), options.output, options.architecture)
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size / 2**20:8.2f} MiB  {file.name}")
    print(f"{folder}  {time.monotonic() - begun:.0f} s")
    return 0


def _twice(options: argparse.Namespace) -> int:
    """0 where all files are the same; otherwise both builds stay."""
    found = tag.check(ROOT, options.version)
    into = Path(tempfile.mkdtemp(prefix="tonnage-release-verify-"))
    rows = twice.compare(ROOT, found, into, options.architecture, print)
    for row in rows:
        print(f"{'same     ' if row.is_same else 'DIFFERENT'} {row.size:>10}  {row.name}")
    different = [row.name for row in rows if not row.is_same]
    if different:
        print(f"release: differ: {', '.join(different)}; both builds are in {into}", file=sys.stderr)
        return 1
    shutil.rmtree(into)
    print(f"{found.name}: {len(rows)} files are the same in both builds")
    return 0


def _verify(options: argparse.Namespace) -> int:
    wrong = list(verify.faults(options.folder, options.signers))
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    if not wrong:
        name = signature.check(options.folder / sums.SUMS, options.signers)
        print(f"{options.folder}: {len(sums.read(options.folder))} files are as {name} signed them")
    return 1 if wrong else 0


def _set_version(options: argparse.Namespace) -> int:
    tag.set_version(ROOT, options.version)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    commands = parser.add_subparsers(required=True)
    building = argparse.ArgumentParser(add_help=False)
    building.add_argument("version", help="as 0.2.0; its tag is checked out")
    building.add_argument(
        "--architecture", action="append", choices=ARCHITECTURES, help="of an image; repeat it (default: all)"
    )
    command = commands.add_parser("make", parents=[building], help="make and sign a release")
    command.add_argument("--key", type=Path, required=True, help="private key of OpenSSH that signs")
    command.add_argument("--output", type=Path, default=Path("dist/release"), help="default: %(default)s")
    command.set_defaults(run=_make)
    command = commands.add_parser("twice", parents=[building], help="build twice, and compare")
    command.set_defaults(run=_twice)
    command = commands.add_parser("verify", help="verify the files of a release")
    command.add_argument("folder", type=Path)
    command.add_argument("--signers", type=Path, default=ROOT / signature.SIGNERS, help="who may sign")
    command.set_defaults(run=_verify)
    command = commands.add_parser("version", help="write a version into each file that has it")
    command.add_argument("version")
    command.set_defaults(run=_set_version)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(words)
    if getattr(options, "architecture", ()) is None:
        options.architecture = list(ARCHITECTURES)
    try:
        return int(options.run(options))
    except Rejected as failure:
        print(f"release: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
