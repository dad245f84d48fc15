"""Measures of the code base, printed as a table: `python -m scripts.measure`.

Code lines are those with a token that is no comment, docstring or blank; generated code and `tonnage_box.testing` are
left out. A path is written below src/tonnage, or as tonnage_box/... The walks are those of scripts/walks.py.
`make check` prints the summary.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

SOURCE, CORE, TESTS = Path("src"), Path("src/tonnage"), Path("tests/unit")
LEFT_OUT = ("csi/_proto", "storage/registry/_proto", "tonnage_box/testing")
"""Folders that are generated, or not part of the product."""
WIDEST = 15
FAMILIES = {"tools/cli": 1000, "kubernetes/api": 1000, "host": 1000}
"""Limits of folders with one file for each row of a family; the others have WIDEST."""
WORDS = (
    "room", "told", "kept", "sent back", "goes back", "given back", "beside", "whoever", "nobody", "is had", "let go",
    "lets go", "on its way out", "debris", "kin", "census", "asker", "depot", "hopeless", "duties", "turn away",
    "take back", "refuse", "refuses", "refusal", "refusals", "refusing", "(?<!connection.)refused",
)  # fmt: skip
"""Words that docstrings and messages avoid (docs/glossary.md has those to use)."""
NAMES = {
    "room", "rooms", "told", "kept", "kin", "census", "booking", "booked", "withdrawal", "withdrawals", "promised",
    "debris", "asker", "depot", "hopeless", "duties",
}  # fmt: skip
"""Words that no name in code has as a part."""
_KINDS = "tests/unit/box/apiserver/kinds"
TESTED_BY = {
    **{
        f"storage/pools/{kind}/kind.py": "tests/unit/storage/pools/test_config.py"
        for kind in ("image", "btrfs", "lvm", "quota", "static", "pmem", "fake", "directory")
    },
    **{
        f"tonnage_box/apiserver/kinds/{group}/rows.py": f"{_KINDS}/test_groups.py"
        for group in (
            "apps",
            "autoscaling",
            "batch",
            "certificates",
            "content",
            "coordination",
            "core",
            "events",
            "network",
            "node",
            "policy",
            "rbac",
            "reviews",
            "snapshot",
            "storage",
        )
    },
    "tonnage_box/apiserver/kinds/reviews/rows.py": "tests/unit/box/apiserver/access/test_reviews.py",
    "tonnage_box/apiserver/kinds/apps/defaults.py": f"{_KINDS}/test_bounds.py",
    "tonnage_box/apiserver/kinds/apps/warnings.py": f"{_KINDS}/core/test_warnings.py",
    "tonnage_box/apiserver/kinds/batch/defaults.py": f"{_KINDS}/batch/test_validation.py",
    "tonnage_box/apiserver/kinds/batch/strategy.py": "tests/unit/box/controllers/workloads/test_job.py",
    "tonnage_box/apiserver/kinds/batch/warnings.py": f"{_KINDS}/core/test_warnings.py",
    "tonnage_box/apiserver/kinds/policy/validation.py": f"{_KINDS}/policy/test_budget.py",
    "tonnage_box/apiserver/kinds/rbac/defaults.py": "tests/unit/box/apiserver/access/test_escalation.py",
    "tonnage_box/apiserver/printers/cells.py": f"{_KINDS}/apps/test_columns.py",
    "csi/driver/hooks.py": "tests/unit/csi/driver/test_inline.py",
    "tools/ops/local_box.py": "tests/integration/test_distributions.py",
    "tonnage_box/node_driver.py": "tests/unit/node/test_agent.py",
    "tonnage_box/local_box.py": "tests/integration/test_distributions.py",
    "storage/pools/kind.py": "tests/unit/storage/pools/test_kinds.py",
    "storage/pools/needs.py": "tests/unit/storage/pools/test_kinds.py",
    "storage/pools/core/deletion.py": "tests/unit/storage/pools/core/test_trash.py",
    "storage/pools/core/growth.py": "tests/conformance/test_pools.py",
    "storage/pools/core/snapshots.py": "tests/unit/storage/pools/core/test_group.py",
    "storage/pools/core/volumes.py": "tests/unit/storage/pools/core/test_pool.py",
    "storage/pools/core/work.py": "tests/unit/storage/pools/core/test_probe.py",
    "storage/pools/lvm/device_setup.py": "tests/unit/tools/cli/test_pool_setup.py",
    "storage/pools/directory/device_setup.py": "tests/unit/tools/cli/test_pool_setup.py",
    "storage/pools/fs/shutdown.py": "tests/crash/faults/test_shut_down.py",
    "tonnage_box/kubelet/containers/start/machine_code.py": "tests/unit/box/kubelet/containers/start/test_program.py",
    "storage/pools/static/content.py": "tests/unit/storage/pools/static/test_amnesia.py",
    "node/provisioner/populator.py": "tests/unit/node/test_populator_library.py",
    "tonnage_box/cli/demo.py": "tests/unit/tools/cli/test_main.py::test_the_story_holds_without_root",
    "controller/attach/comparison.py": "tests/unit/controller/attach/test_attacher.py"
    "::test_a_volume_that_was_detached_at_the_storage_is_attached_again",
    "controller/attach/loops.py": "tests/integration/test_attach.py::test_data_moves_from_node_to_node_with_the_pod",
    "base/transitions.py": "tests/unit/node/provisioner/test_transitions.py",
    "node/provisioner/context.py": "fields only: mypy",
    "node/snapshots/contents.py": "tests/unit/node/test_snapshots.py",
    "node/snapshots/single.py": "tests/unit/node/test_snapshots.py",
    "node/snapshots/groups.py": "tests/unit/node/test_group_snapshots.py",
    "node/snapshots/shared.py": "tests/unit/node/test_snapshots.py",
    "controller/snapshots/contents.py": "tests/unit/controller/snapshots/test_controller.py",
    "controller/snapshots/sources.py": "tests/unit/controller/snapshots/test_decision.py",
    "controller/snapshots/reports.py": "tests/unit/controller/snapshots/test_controller.py",
    "controller/snapshots/loop.py": "tests/unit/controller/snapshots/test_controller.py",
    "controller/snapshots/members.py": "tests/unit/controller/snapshots/test_group_controller.py",
    "controller/snapshots/stages.py": "tests/unit/controller/snapshots/test_decision.py",
    "provisioning/claims/snapshot_shape.py": "tests/unit/controller/snapshots/test_decision.py",
}
"""Module without a test of its name -> the test that fails when its main function is emptied."""
_WORD = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b", re.IGNORECASE)
_CONSTANT = re.compile(r"(?:^|\.)_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*$")
_FILE = re.compile(r"\b[a-z_]+\.py\b")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
            tokenize.ENCODING}  # fmt: skip


@dataclass
class Module:
    """What is counted of one file. code, comments: lines. functions: lines of each. words, files: found in docstrings
    and messages (words), in docstrings (names of files)."""

    path: Path
    lines: int
    code: int
    comments: int
    functions: list[int] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """As documents write it."""
        return str(short(self.path.parent))


def measure(path: Path) -> Module:
    """Count one file. Raises SyntaxError."""
    text = path.read_text()
    tree = ast.parse(text)
    docstrings = list(_docstrings(tree))
    inside = {line for node in docstrings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    code: set[int] = set()
    comments: set[int] = set()
    private: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            private += NAMES.intersection(token.string.lower().split("_"))
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    found = Module(path, text.count("\n"), len(code - inside), len(comments), words=private)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.words += _WORD.findall(node.value) if " " in node.value else []
    found.files = [name for node in docstrings for name in _FILE.findall(str(node.value))]
    return found


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand alone as statements: docstrings, and those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def short(path: Path) -> Path:
    """A path of the source as documents write it: below src/tonnage, or tonnage_box/..."""
    return path.relative_to(CORE if path.is_relative_to(CORE) else SOURCE)


def mirrored(folder: Path) -> Path:
    """The folder of tests for a folder of the source, below TESTS."""
    return Path("box", *folder.parts[1:]) if folder.parts[:1] == ("tonnage_box",) else folder


def modules() -> list[Module]:
    """All that are measured."""
    paths = (
        path for path in sorted(SOURCE.rglob("*.py")) if not any(short(path).is_relative_to(out) for out in LEFT_OUT)
    )
    return [measure(path) for path in paths]


def widths(found: Iterable[Module]) -> dict[str, int]:
    """Files of each folder, `__init__` left out."""
    return dict(Counter(module.folder for module in found if module.path.name != "__init__.py"))


def too_wide(found: Iterable[Module]) -> list[str]:
    """Folders with more files than they may have."""
    return [folder for folder, count in widths(found).items() if count > FAMILIES.get(folder, WIDEST)]


def doubled(found: Iterable[Module]) -> dict[str, list[str]]:
    """Names of classes that are defined in more than one place: where. Private ones may be."""
    where = defaultdict(list)
    for module in found:
        for name in module.classes:
            if not name.startswith("_"):
                where[name].append(str(short(module.path)))
    return {name: places for name, places in sorted(where.items()) if len(places) > 1}


def untested(found: Iterable[Module]) -> list[str]:
    """Modules without a test of their name in the mirrored folder."""
    missing = []
    for module in found:
        path = short(module.path)
        if path.name.startswith("__") or (TESTS / mirrored(path.parent) / f"test_{path.stem}.py").exists():
            continue
        missing.append(str(path))
    return missing


def lines_of_tests(tests: Path = TESTS.parent) -> int:
    """Lines of all files of tests."""
    return sum(path.read_text().count("\n") for path in tests.rglob("*.py"))


def changed_constants(tests: Path = TESTS.parent) -> list[str]:
    """Where tests change a constant of a module: setattr() with its name, alone or after those of its module."""
    return [
        f"{path}:{node.lineno}"
        for path in sorted(tests.rglob("*.py"))
        if "setattr(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"
        if any(isinstance(one, ast.Constant) and _CONSTANT.search(str(one.value)) for one in node.args[:2])
    ]


def _spread(numbers: Sequence[int]) -> str:
    return f"median {median(numbers):.0f}, p90 {quantiles(numbers, n=10)[-1]:.0f}, most {max(numbers)}"


def report(found: Sequence[Module], *, is_whole: bool) -> Iterator[str]:
    """Lines of the report. is_whole: with each folder, class and module by name."""
    code, comments = sum(module.code for module in found), sum(module.comments for module in found)
    wide = widths(found)
    widest = max((folder for folder in wide if folder not in FAMILIES), key=wide.__getitem__)
    same, missing = doubled(found), untested(found)
    named = [module for module in found if not module.path.name.startswith("__")]
    words = Counter(word.lower() for module in found for word in module.words)
    files = sum(len(module.files) for module in found)
    yield f"files                          {len(found)}"
    yield f"lines of code                  {code:,}"
    yield f"comments                       {comments:,} lines, {comments / (code + comments):.1%}"
    yield f"widest folder                  {widest}: {wide[widest]} files; over the limit: {len(too_wide(found))}"
    yield f"lines of modules               {_spread([module.lines for module in named])}"
    yield f"lines of functions             {_spread([lines for module in found for lines in module.functions])}"
    yield f"class names used twice         {len(same)}"
    yield f"modules with a test of a name  {1 - len(missing) / len(named):.0%}, {len(missing)} without"
    yield f"names of files in docstrings   {files}"
    yield f"words to avoid                 {sum(words.values())}"
    yield f"lines of tests                 {lines_of_tests():,}"
    yield f"constants that tests change    {len(changed_constants())}"
    if is_whole:
        lines = Counter(dict.fromkeys(wide, 0))
        for module in found:
            lines[module.folder] += module.lines
        yield "\nfolders (files, lines):"
        yield from (f"  {folder:32} {wide.get(folder, 0):4} {lines[folder]:7}" for folder in sorted(lines))
        yield "\nclass names used twice:"
        yield from (f"  {name:24} {', '.join(places)}" for name, places in same.items())
        yield "\nwords to avoid:"
        yield from (f"  {word:16} {count:5}" for word, count in words.most_common())
        yield "\nmodules without a test of their name:"
        yield from (f"  {path:32} {TESTED_BY.get(path, '?')}" for path in missing)


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", action="store_true", help="totals only")
    options = parser.parse_args()
    print(*report(modules(), is_whole=not options.summary), sep="\n", flush=True)
    # In a process of its own: it imports the product, and sets a profile function.
    walks = [sys.executable, str(Path(__file__).with_name("walks.py")), *(["--summary"] if options.summary else [])]
    return subprocess.run(walks, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
