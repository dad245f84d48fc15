"""Makes small faults in one file, and shows which of them no test finds: `make mutants FILE=src/tonnage/...`.

    python -m scripts.mutants FILE [--seed N] [--count N] [--only NUMBER]...

Each mutant has one change inside a function: a bound, a condition, a number, a statement that is left out or exchanged
with the next, an exception's class. Messages, log lines and metrics stay. The tests of TESTS run one group after the
other until one fails, in a worktree of what is checked out (changes that git tracks included) and, as root, in
namespaces of their own. A mutant that no group finds is printed with its diff: it changes nothing that matters, or a
test is missing.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

from scripts.measure import short
from scripts.run_tests import GUESTS_AND_GO

_CORE = "tests/unit/storage/pools/core"
_TRASH = (f"{_CORE}/test_trash.py", f"{_CORE}/test_trash_machine.py")
_POOLS = (_CORE, "tests/unit/storage/pools/fake", "tests/conformance/test_pools.py")
_MORE_POOLS = ("tests/unit/storage/pools", "tests/unit/csi")
_NODE, _BOX = "tests/unit/node", "tests/unit/box/apiserver"
_CLUSTER = (
    f"{_NODE}/test_cluster_amnesia.py",
    f"{_NODE}/test_orphans.py",
    f"{_NODE}/test_agent.py",
    "--histories",
    "30",
)
_BOX_DISK = ("tests/crash/faults/test_full_disk.py", "tests/crash/faults/test_box.py", "-k", "disk")
TESTS: dict[str, Sequence[Sequence[str]]] = {
    "kubernetes/client/object_write.py": (
        ("tests/unit/kubernetes/client/test_object_write.py",),
        ("tests/unit/controller/snapshots", f"{_NODE}/test_snapshots.py"),
    ),
    "tonnage_box/apiserver/access/token.py": ((f"{_BOX}/access",), (f"{_BOX}/server",)),
    "provisioning/capacity/ledger.py": (
        ("tests/unit/provisioning/capacity/test_ledger.py",),
        (f"{_NODE}/capacity", f"{_NODE}/provisioner"),
    ),
    "node/provisioner/state.py": ((f"{_NODE}/provisioner/test_state.py",), (f"{_NODE}/provisioner", *_CLUSTER)),
    "node/reclaim/released.py": (
        (f"{_NODE}/reclaim", f"{_NODE}/test_static_pvs.py"),
        (f"{_NODE}/flexvolume", *_CLUSTER),
    ),
    "storage/pools/core/trash.py": (_TRASH, _POOLS, _MORE_POOLS),
    "storage/pools/base/reservation.py": (("tests/unit/storage/pools/base",), _POOLS, _MORE_POOLS),
    "storage/pools/base/record.py": (("tests/unit/storage/pools/base",), _POOLS, (*_MORE_POOLS, "tests/upgrade")),
    "storage/pools/core/volumes.py": (
        (*_TRASH, f"{_CORE}/test_pool.py", "tests/unit/storage/pools/fake"),
        _POOLS,
        _MORE_POOLS,
    ),
    "tonnage_box/apiserver/storage/sqlite.py": ((f"{_BOX}/storage", "tests/conformance/test_store.py"), _BOX_DISK),
}
"""File below src/tonnage -> groups of tests, the fastest first."""
_OTHER: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.And: " and ", ast.Or: " or ", ast.Add: "-", ast.Sub: "+"
}  # fmt: skip
_Change = tuple[Any, Any, str]  # mypy knows no places of nodes
"""The first and the last part that one text replaces, and this text."""
_SHOWN = ("log.", "metrics.")
_ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh")
"""The shell reaps what ends without a parent, and what is left is killed."""


def _changes(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(left, [op], [right]) | ast.BinOp(left, op, right) if type(op) in _OTHER:
            yield node, node, f"({ast.unparse(left)} {_OTHER[type(op)]} {ast.unparse(right)})"
        case ast.BoolOp(op, values):
            for one in values:
                others = (f"({ast.unparse(value)})" for value in values if value is not one)
                yield node, node, f"({_OTHER[type(op)].join(others)})"
        case ast.Constant(int(number)) if not isinstance(number, bool):
            yield node, node, f"{number + 1}"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
            yield from ((test, test, answer) for answer in ("True", "False"))
        case ast.Expr(ast.Call() | ast.Await()) | ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield node, node, "pass"
        case ast.Call(ast.Name("suppress"), [_, *_]):
            yield node, node, "suppress()"
        case ast.Raise(ast.Call(ast.Name() as name)):
            yield name, name, "RuntimeError"
        case ast.ExceptHandler(type=ast.expr() as caught):
            yield caught, caught, "ZeroDivisionError"
    match node:
        case ast.If(body=[_, *_, ast.Return() as ended]):
            yield ended, ended, "pass"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If() | ast.With() | ast.AsyncWith() | ast.Try():
            for now, then in pairwise(node.body):
                texts = ast.unparse(now), ast.unparse(then)
                is_shown = any(text.startswith(_SHOWN) for text in texts)
                if isinstance(now, ast.Assign | ast.Expr) and isinstance(then, ast.Expr) and not is_shown:
                    yield now, then, "; ".join(reversed(texts))


def _walk(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.JoinedStr | ast.arguments) or ast.unparse(node).startswith(_SHOWN):
        return
    yield from _changes(node)
    if not isinstance(node, ast.Raise | ast.AnnAssign):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def mutants(text: str, seed: int) -> Iterator[tuple[int, str]]:
    """All mutants of a file's text, each with its line, in an order that the seed chooses."""
    body, found = text.encode(), dict[str, int]()
    starts = [0, *accumulate(map(len, body.splitlines(keepends=True)))]
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for first, last, new in (change for function in functions for change in _walk(function)):
        start, end = starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset
        found.setdefault((body[:start] + new.encode() + body[end:]).decode(), first.lineno)
    for mutant in random.Random(seed).sample(list(found), len(found)):
        with suppress(SyntaxError):  # as a number in a pattern
            compile(mutant, "mutant", "exec")
            yield found[mutant], mutant


class Bench:
    """A worktree in which the tests of one file run.

    least: seconds that a group of them has beside three times what it takes without a mutant.
    """

    def __init__(self, folder: Path, path: Path, *, least: float = 30.0) -> None:
        self.folder, self.path, self._least = folder, path, least
        self.text = (folder / path).read_text()
        self.groups = TESTS[str(short(path))]
        self._limits: dict[Sequence[str], float] = {}

    def is_found(self, mutant: str) -> bool:
        """Whether a test fails, or does not end."""
        for group in self.groups:
            if group not in self._limits:
                begun = time.monotonic()
                if not self._passes(self.text, group, 1800):
                    sys.exit(f"tests fail without a mutant: {' '.join(group)}")
                self._limits[group] = self._least + 3 * (time.monotonic() - begun)
            if not self._passes(mutant, group, self._limits[group]):
                return True
        return False

    def diff(self, mutant: str) -> list[str]:
        """What the mutant changes, as lines."""
        return [*difflib.unified_diff(self.text.splitlines(), mutant.splitlines(), lineterm="")][2:]

    def _passes(self, text: str, group: Sequence[str], limit: float) -> bool:
        (self.folder / self.path).write_text(text)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", GUESTS_AND_GO, *group]
        process = subprocess.Popen(
            [*(_ISOLATED if os.geteuid() == 0 else ()), *command, "--hypothesis-profile=test"],
            cwd=self.folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "", "CI": "1"},
        )  # fmt: skip
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help=f"below src/tonnage, one of: {', '.join(TESTS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (default %(default)s)")
    parser.add_argument("--count", type=int, default=10, help="mutants (default %(default)s)")
    parser.add_argument("--only", type=int, action="append", help="a mutant's number, to run it again")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        _git("worktree", "add", "--detach", folder, _git("stash", "create") or "HEAD")
        try:
            bench = Bench(Path(folder), options.file)
            chosen = islice(mutants(bench.text, options.seed), options.count)
            for number, (line, mutant) in enumerate(chosen, 1):
                if number in (options.only or [number]):
                    diff = [] if bench.is_found(mutant) else bench.diff(mutant)
                    outcome = "SURVIVED" if diff else "killed"
                    print(f"{number:3} {options.file}:{line} {outcome}", *diff, sep="\n", flush=True)
        finally:
            _git("worktree", "remove", "--force", folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
