"""Writes docs/reference/{cli,metrics,events,annotations,pool-kinds}.md from the code, the tables in
docs/reference/class-parameters.md, and the states in docs/architecture.md: `make reference`.

Only the names imported below are tied to a place in the tree. Metrics, Events and keys are found by reading every
source file, so a module may move. `--check` writes nothing and fails when a page is not current.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import inspect
import os
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tonnage.base.transitions import Transition, TransitionTable
    from tonnage.storage.pools.base.contract import Features
    from tonnage.storage.pools.kind import PoolKind

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGES = ROOT / "docs" / "reference"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PARAMETERS = PAGES / "class-parameters.md"
NAMES = SOURCE / "tonnage/kubernetes/api/names.py"
_METRICS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Sums": "gauge"}
_METHODS = {"normal": "Normal", "warning": "Warning", "record": "", "body": ""}
_FOLDERS = "| folder | what it does, who calls it, what it may touch |\n| --- | --- |\n"
_MADE = "Generated from the\ncode by `make reference`: change it there.\n"


@dataclass
class Module:
    """One parsed source file, with its constants and where each name was imported from."""

    path: Path
    tree: ast.Module

    @cached_property
    def package(self) -> str:
        """The folder, as `node.provisioner` or `tonnage_box.kubelet`."""
        return ".".join(self.path.relative_to(SOURCE).parts[:-1]).removeprefix("tonnage.")

    @cached_property
    def dotted(self) -> str:
        """The module's full name."""
        parts = [p for p in self.path.relative_to(SOURCE).with_suffix("").parts if p != "__init__"]
        return ".".join(parts)

    @cached_property
    def constants(self) -> Mapping[str, ast.expr]:
        """Module-level assignments of names."""
        found: dict[str, ast.expr] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign):
                for target in ast.walk(node.targets[0]):
                    if isinstance(target, ast.Name):
                        found.update((target.id, value) for value in _assigned(node, target.id))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                found[node.target.id] = node.value
        return found

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, at any depth: walked once."""
        return list(_walk(self.tree))

    @cached_property
    def imports(self) -> Mapping[str, tuple[str, str]]:
        """Local name -> (module, name there)."""
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, at any depth."""
        return [n for n in self.nodes if isinstance(n, ast.Call)]

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, at any depth."""
        return [n for n in self.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@dataclass
class Tree:
    """All source files."""

    modules: list[Module] = field(default_factory=list)

    @classmethod
    def read(cls) -> Tree:
        """Parse the package, without generated code."""
        paths = sorted(p for p in SOURCE.rglob("*.py") if not {"_proto", "testing"} & set(p.parts))
        return cls([Module(p, ast.parse(p.read_text(), str(p))) for p in paths])

    @cached_property
    def by_name(self) -> Mapping[str, Module]:
        return {m.dotted: m for m in self.modules}

    @cached_property
    def calls(self) -> Mapping[str, list[tuple[Module, ast.Call]]]:
        """Function or method name -> its calls anywhere."""
        found: dict[str, list[tuple[Module, ast.Call]]] = defaultdict(list)
        for module in self.modules:
            for node in module.calls:
                found[_called(node)].append((module, node))
        return found

    def texts(self, module: Module, node: ast.expr, where: ast.AST | None = None, depth: int = 4) -> set[str]:
        """The texts that an expression can be; placeholders of f-strings as {...}. Empty where it is not known."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if isinstance(node, ast.IfExp):
            return self.texts(module, node.body, where, depth) | self.texts(module, node.orelse, where, depth)
        if isinstance(node, ast.JoinedStr):
            return {"".join(_part(v) for v in node.values)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return {
                a + b
                for a in self.texts(module, node.left, where, depth) or {"{...}"}
                for b in self.texts(module, node.right, where, depth) or {"{...}"}
            } - {"{...}{...}"}
        if depth and isinstance(node, ast.Attribute):
            name = node.value.id if isinstance(node.value, ast.Name) else ""
            return self._imported(module, name, node.attr, depth) or self._fields(module, node.attr)
        return self._named(module, node.id, where, depth) if depth and isinstance(node, ast.Name) else set()

    def _imported(self, module: Module, name: str, attribute: str, depth: int) -> set[str]:
        there = self.by_name.get(".".join(module.imports.get(name, ("", ""))))
        value = there.constants.get(attribute) if there else None
        return self.texts(there, value, None, depth - 1) if there and value is not None else set()

    def _fields(self, module: Module, attribute: str) -> set[str]:
        """The texts of a field in the records that modules of the same folder make of their own constants."""
        return self._records.get((module.path.parent, attribute), set())

    @cached_property
    def _records(self) -> Mapping[tuple[Path, str], set[str]]:
        """Folder and name of a field -> its texts."""
        found: dict[tuple[Path, str], set[str]] = defaultdict(set)
        for module in self.modules:
            calls = (constant for constant in module.constants.values() if isinstance(constant, ast.Call))
            for word in (word for call in calls for word in call.keywords):
                if word.arg and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str):
                    found[module.path.parent, word.arg].add(word.value.value)
        return found

    def _named(self, module: Module, name: str, where: ast.AST | None, depth: int) -> set[str]:
        if isinstance(where, ast.FunctionDef | ast.AsyncFunctionDef):
            assigned = _assignments(where, name)
            if assigned:
                return set().union(*(self.texts(module, v, where, depth - 1) for v in assigned))
        if name in module.constants:
            return self.texts(module, module.constants[name], None, depth - 1)
        source, original = module.imports.get(name, ("", ""))
        return self._constant(source, original, depth)

    def _constant(self, source: str, name: str, depth: int) -> set[str]:
        there = self.by_name.get(source)
        value = there.constants.get(name) if there else None
        return self.texts(there, value, None, depth - 1) if there and value is not None else set()


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """As ast.walk(), in less time."""
    waiting = [tree]
    for node in waiting:
        yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _part(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "{...}"


def _assigned(node: ast.AST, name: str) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == name:
                yield node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from (v for t, v in pairs if isinstance(t, ast.Name) and t.id == name)


@cache
def _inside(function: ast.AST) -> list[ast.Assign]:
    return [n for n in _walk(function) if isinstance(n, ast.Assign)]


def _assignments(function: ast.AST, name: str) -> list[ast.expr]:
    """What is assigned to a name anywhere in a function."""
    return [value for node in _inside(function) for value in _assigned(node, name)]


def _function(module: Module, inside: ast.Call) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function that holds a node."""
    line = inside.lineno
    holding = [f for f in module.functions if f.lineno <= line <= (f.end_lineno or f.lineno)]
    return max(holding, key=lambda f: f.lineno, default=None)


# -- Metrics --


def metrics(tree: Tree) -> str:
    """Every metric: name as Prometheus shows it, type, labels, meaning."""
    rows = []
    for module in tree.modules:
        for node in module.calls:
            if _called(node) in _METRICS and len(node.args) >= 2:
                name, text = (tree.texts(module, a) for a in node.args[:2])
                if len(name) == len(text) == 1:
                    rows.append(_metric(_METRICS[_called(node)], name.pop(), text.pop(), node.args[2:]))
    table = "\n".join(f"| `{n}` | {kind} | {labels} | {_cell(text)} |" for n, kind, labels, text in sorted(rows))
    return f"""# Metrics

This page is for people who monitor tonnage: every metric that its processes export. {_MADE}
`--metrics [ADDRESS:]PORT` serves them as `/metrics`. A histogram `x` is shown as `x_bucket`, `x_sum` and `x_count`.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
{table}
"""


def _metric(kind: str, name: str, text: str, more: list[ast.expr]) -> tuple[str, str, str, str]:
    elements = more[0].elts if more and isinstance(more[0], ast.List | ast.Tuple) else []
    labels = [str(e.value) for e in elements if isinstance(e, ast.Constant)]
    name += "_total" if kind == "counter" and not name.endswith("_total") else ""
    return name, kind, ", ".join(f"`{label}`" for label in labels), text


# -- Events --


@dataclass(frozen=True, order=True)
class Event:
    """An Event that some code emits: message as a pattern, "" where it is only known at run time."""

    reason: str
    type: str
    kind: str
    package: str
    message: str


def events(tree: Tree) -> str:
    """Every Event: reason, type, object, emitting package, message."""
    found = sorted({e for module in tree.modules for e in (*_events(tree, module), *_handed_on(tree, module))})
    table = "\n".join(f"| `{e.reason}` | {e.type} | {e.kind} | `{e.package}` | {_pattern(e.message)} |" for e in found)
    return f"""# Events

This page is for people who read Events of pods, claims and nodes, or alert on them. {_MADE}
`...` is filled in at run time. Without a message: it is a driver's or the kernel's, or is put together at run time.

| reason | type | object | emitted by | message |
| --- | --- | --- | --- | --- |
{table}
"""


@dataclass(frozen=True)
class Written:
    """An expression where it is written."""

    node: ast.expr
    module: Module
    where: ast.FunctionDef | ast.AsyncFunctionDef | None


def _events(tree: Tree, module: Module) -> Iterator[Event]:
    """The Events that a module's calls of an EventRecorder emit."""
    for node in module.calls:
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS):
            continue
        if not ast.unparse(node.func.value).endswith("events") or len(node.args) < 3:
            continue
        given = [Written(a, module, _function(module, node)) for a in node.args]
        if _METHODS[node.func.attr]:
            given.insert(1, Written(ast.Constant(_METHODS[node.func.attr]), module, None))
        yield from _event(tree, given[:4], depth=3)


def _event(tree: Tree, given: list[Written], depth: int) -> Iterator[Event]:
    """The Events of one call: object, type, reason, message. A parameter is looked up at each call of its function."""
    about, kind, reason, message = given
    open_ = next((w for w in (reason, kind) if _is_parameter(w)), None)
    if open_ is not None and open_.where is not None and depth:
        owner = open_.where
        for module, call in tree.calls.get(owner.name, ()):
            if not owner.name.startswith("_") or module is open_.module:
                where = _function(module, call)
                bound = {k: Written(v, module, where) for k, v in _bound(owner, call).items()}
                inside = [bound.get(w.node.id, w) if _is_parameter(w) else w for w in given]  # type: ignore[attr-defined]
                yield from _event(tree, inside, depth - 1)
        return
    messages = tree.texts(message.module, message.node, message.where)
    text = next(iter(messages)) if len(messages) == 1 else ""
    for word in tree.texts(reason.module, reason.node, reason.where):
        for level in tree.texts(kind.module, kind.node, kind.where) & {"Normal", "Warning"}:
            if re.fullmatch(r"[A-Z][A-Za-z]+", word):
                yield Event(word, level, _kind(tree, about), reason.module.package, text)


def _handed_on(tree: Tree, module: Module) -> Iterator[Event]:
    """Calls like `emit("Normal", "Started", message)` of a function that was passed in; an object may come first."""
    for node in module.calls:
        if not isinstance(node.func, ast.Attribute) or len(node.args) not in (3, 4):
            continue
        if isinstance(node.args[-3], ast.Constant) and node.func.attr not in _METHODS:
            level, reason, message = (Written(a, module, _function(module, node)) for a in node.args[-3:])
            yield from _event(tree, [message, level, reason, message], depth=0)


def _is_parameter(written: Written) -> bool:
    if written.where is None or not isinstance(written.node, ast.Name):
        return False
    name = written.node.id
    return name in _parameters(written.where) and not _assignments(written.where, name)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    by_position = dict(zip(_parameters(function), call.args, strict=False))
    return by_position | {k.arg: k.value for k in call.keywords if k.arg}


def _kind(tree: Tree, about: Written) -> str:
    """The kind of object that an Event is about, of `refer(PODS, pod)`; "" where it is not that plain."""
    node = about.node
    if isinstance(node, ast.Name) and about.where is not None:
        node = next(iter(_assignments(about.where, node.id)), node)
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _called(call) == "refer" and isinstance(call.args[0], ast.Name):
            source, name = about.module.imports.get(call.args[0].id, ("", ""))
            there = tree.by_name.get(source)
            value = there.constants.get(name) if there else None
            if there is not None and isinstance(value, ast.Call):
                texts = [t for a in [*value.args, *(k.value for k in value.keywords)] for t in tree.texts(there, a)]
                texts += [a.attr for a in value.args if isinstance(a, ast.Attribute) and not a.attr.isupper()]
                return next((t for t in texts if t[:1].isupper()), "")
    return ""


def _pattern(message: str) -> str:
    return _cell(re.sub(r"\s+", " ", message.replace("{...}", "..."))) if message.strip("{.}") else ""


# -- Labels, annotations and other names --


def keys(tree: Tree) -> str:
    """Every key of `tonnage.kubernetes.api.names`, with the comment that describes it and the packages that use it."""
    users = _users(tree)
    tables, heading = [], ""
    for title, name, value, text in _keys(tree):
        if title != heading:
            heading = title
            tables.append(f"\n## {title}\n\n| key | meaning | used in |\n| --- | --- | --- |")
        used = ", ".join(f"`{p}`" for p in sorted(users.get(name, ())))
        tables.append(f"| `{value}` | {_cell(text)} | {used} |")
    return f"""# Labels, annotations and other keys

This page is for people who write policies, queries or other controllers: every key on an object, in a class or in a
volume context that tonnage reads or writes. {_MADE}
A key of Kubernetes without a meaning here is documented by Kubernetes.
{chr(10).join(tables)}
"""


def _keys(tree: Tree) -> Iterator[tuple[str, str, str, str]]:
    """(section, constant, key, description), in the order of the file; keys have a slash."""
    lines = NAMES.read_text().splitlines()
    module = next(m for m in tree.modules if m.path == NAMES)
    title = "Kubernetes"
    body = module.tree.body
    for index, node in enumerate(body):
        if not (isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None):
            continue
        comment: list[str] = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.startswith("# "):
                break
            comment.insert(0, line[2:])
        if comment and re.fullmatch(r"Kubernetes(: .+)?|tonnage", comment[0]):
            title = _title(comment.pop(0))
        after = body[index + 1] if index + 1 < len(body) else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            comment.append(str(after.value.value))
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        for value in tree.texts(module, node.value):
            if isinstance(target, ast.Name) and "/" in value:
                yield title, target.id, value, " ".join(comment)


def _title(heading: str) -> str:
    before, _, after = heading.partition(": ")
    return f"{before}: {after}" if after else before


def _users(tree: Tree) -> Mapping[str, set[str]]:
    """Constant of `tonnage.kubernetes.api.names` -> top-level packages that use it."""
    used: dict[str, set[str]] = defaultdict(set)
    for module in tree.modules:
        package = module.package.partition(".")[0]
        if module.path == NAMES:
            continue
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "names":
                used[node.attr].add(package)
        for source, name in module.imports.values():
            if source == "tonnage.kubernetes.api.names":
                used[name].add(package)
    return used


# -- Commands --


def cli(_: Tree) -> str:
    """Every verb with its arguments and options."""
    os.geteuid = lambda: 0  # defaults that depend on the user are shown as root sees them
    from tonnage.tools.cli.main import VERBS, build_parser

    parts: list[str] = []
    for verb in VERBS:
        top = build_parser(verb)
        parts += _verb(_subparsers(top)[verb], 2)
    return f"""# Commands

This page is for people who run `tonnage`: each verb with its options. {_MADE}
Defaults are those of root. `tonnage VERB --help` prints the same.

{chr(10).join(parts)}"""


def _subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def _verb(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {parser.prog}\n"
    if parser.description:
        yield f"{_cell(parser.description)}\n"
    rows = [a for a in parser._actions if not isinstance(a, argparse._SubParsersAction | argparse._HelpAction)]
    rows = [a for a in rows if a.help != argparse.SUPPRESS]
    if rows:
        yield "| argument | meaning |\n| --- | --- |"
        yield "\n".join(f"| `{_flags(a)}` | {_cell(_help(parser, a))} |" for a in rows) + "\n"
    for sub in dict.fromkeys(_subparsers(parser).values()):
        yield from _verb(sub, level + 1)


def _flags(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None and not value:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return value or action.dest
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    value = value or action.dest.upper()
    return ", ".join(action.option_strings) + (f" [{value}]" if action.nargs == "?" else f" {value}")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    known = {**vars(action), "prog": parser.prog}
    return (action.help or "") % {k: getattr(v, "__name__", v) if k == "type" else v for k, v in known.items()}


# -- Folders --


def folders(root: Path) -> str:
    """docs/architecture.md of a repository with its table of folders as the docstrings of `__init__` have it.

    The box first, the others in the order of the layers in pyproject.toml. A folder without a docstring has no row.
    """
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    names = [name.strip() for layer in layers for name in layer.split("|")]
    tops = dict.fromkeys(Path("tonnage", name.split(".")[1]) for name in names)
    source, rows = root / "src", list[str]()
    for top in (Path("tonnage_box"), *tops):
        for path in sorted((source / top).rglob("__init__.py"), key=lambda p: p.parent.parts):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            name = path.parent.relative_to(source).as_posix().removeprefix("tonnage/")
            if text and "_proto" not in path.parts:
                rows.append(f"| `{name}` | {' '.join(text.split())} |")
    page = (root / "docs" / "architecture.md").read_text()
    head, found, rest = page.partition(_FOLDERS)
    if not found:
        raise SystemExit(
            "docs/architecture.md: no table of folders; it begins with the line " + _FOLDERS.splitlines()[0]
        )
    return head + found + "".join(f"{row}\n" for row in rows) + rest[rest.index("\n\n") + 1 :]


# -- States --


def states(page: str) -> str:
    """docs/architecture.md with a diagram and a table of each kind of object that has a table of transitions."""
    from tonnage.controller.snapshots.stages import STAGES
    from tonnage.node.provisioner.state import CLAIM_TRANSITIONS

    tables: tuple[TransitionTable[Any, Any], ...] = CLAIM_TRANSITIONS, STAGES
    for table in tables:
        page = _with_part(page, f"states of a {table.kind}", f"{_diagram(table)}\n{_rows(table)}")
    return page


def _with_part(page: str, name: str, text: str) -> str:
    """A page with that text in its generated part of a name."""
    marker = f"<!-- generated: {name} -->\n"
    head, found, rest = page.partition(marker)
    if not found:
        raise SystemExit(f"no {name} on a page in docs: they begin with the line {marker}")
    return f"{head}{found}{text}{rest[rest.index('<!-- end -->') :]}"


def _diagram(table: TransitionTable[Any, Any]) -> str:
    """A Mermaid diagram. States that share rows are drawn once more as one, from which these rows begin."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {table.start.value}"]
    arrows: dict[tuple[str, str], list[str]] = {}
    changes = ((row, row.after.value) for row in table.rows if row.after is not None)
    for row, after in changes:
        for source in _sources(table, row):
            arrows.setdefault((source, after), []).append(row.event.value)
    drawn = {source for source, _ in arrows}
    lines += [
        f'    state "{" or ".join(state.value for state in group)}" as {name}'
        for name, group in table.groups.items()
        if name in drawn
    ]
    lines += [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    return "\n".join([*lines, "```", ""])


def _sources(table: TransitionTable[Any, Any], row: Transition[Any, Any]) -> list[str]:
    """The names of groups that a row begins in as a whole, then of its other states."""
    whole = {name: group for name, group in table.groups.items() if set(group) <= set(row.before)}
    whole = {name: group for name, group in whole.items() if not any(set(group) < set(g) for g in whole.values())}
    inside = {state for group in whole.values() for state in group}
    return [*whole, *(state.value for state in row.before if state not in inside)]


def _rows(table: TransitionTable[Any, Any]) -> str:
    kind = type(table.start)
    texts = _meanings(kind)
    lines = ["| state | meaning |", "| --- | --- |", *(f"| `{s.value}` | {_cell(texts[s.name])} |" for s in kind)]
    for name, group in table.groups.items():
        lines += ["", f"*{_title_of(name)}* is each of {', '.join(f'`{state.value}`' for state in group)}."]
    lines += ["", "| event | from | to | why |", "| --- | --- | --- | --- |"]
    for _, alike in groupby(table.rows, key=lambda row: (row.before, row.after, row.why)):
        row, *others = alike
        events = ", ".join(each.event.value for each in (row, *others))
        begins = ", ".join(f"*{_title_of(s)}*" if s in table.groups else f"`{s}`" for s in _sources(table, row))
        ends = f"`{row.after.value}`" if row.after is not None else "stays"
        lines.append(f"| {events} | {begins} | {ends} | {_cell(row.why)} |")
    return "\n".join(lines) + "\n"


def _title_of(group: str) -> str:
    return group.replace("_", " ")


def _meanings(kind: type[Enum]) -> dict[str, str]:
    """Member -> the docstring below it."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    pairs = pairwise(body.body)
    return {
        ast.unparse(member.targets[0]): str(text.value.value)
        for member, text in pairs
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


# -- Files --


def _cell(text: str) -> str:
    """Text within a Markdown table: one line, nothing in it taken for markup."""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text) if "`" not in text else _outside_code(text)


def _outside_code(text: str) -> str:
    parts = text.split("`")
    return "`".join(
        p.replace("|", "\\|") if i % 2 else re.sub(r"([|<>*_\[\]])", r"\\\1", p) for i, p in enumerate(parts)
    )


def pool_kinds(_tree: Tree) -> str:
    """Every kind of pool: what its PoolKind says."""
    from tonnage.storage.pools import kinds

    head = ["", *(f"[{kind}](../pools/{kind}.md)" for kind in kinds.known())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *_kind_rows(kinds.known())])
    return f"""# Kinds of pools

This page is for people who choose a kind of pool, or prepare a node for one. {_MADE}
A pool is described as `KIND:PLACE,option=value,...`; what the options mean is on each kind's own page. What its volumes
can do is in [class parameters](class-parameters.md).

{table}
"""


def _kind_rows(found: Sequence[PoolKind[Any]]) -> Iterator[list[str]]:
    needs = [kind.needs(kind.config(kind)) for kind in found]
    yes = {True: "yes", False: ""}
    yield ["place", *(kind.place for kind in found)]
    yield ["Debian packages", *(", ".join(f"`{tool.package}`" for tool in need.tools) for need in needs)]
    yield ["loop devices", *(yes[need.loop] for need in needs)]
    yield ["file systems of the kernel", *(", ".join(kind.formats) for kind in found)]
    yield ["made of devices by `tonnage pools init`", *(yes[kind.setup is not None] for kind in found)]
    yield ["sizes are enforced", *(yes[kind.is_real] for kind in found)]
    yield ["PVs before claims", *(yes[kind.is_prepared] for kind in found)]
    yield ["each mount takes an SELinux context", *(yes[kind.selinux] for kind in found)]
    for word in dict.fromkeys(word for kind in found for word in kind.words):
        yield [f"option `{word}`", *(yes[word in kind.words] for kind in found)]


# -- Class parameters --


def class_parameters(page: str) -> str:
    """docs/reference/class-parameters.md with the rows of the table of parameters, and what each kind of pool takes."""
    from tonnage.storage.pools.base.parameters import TABLE, KeyReader

    for name, readers in (
        ("parameters", (KeyReader.DRIVER, KeyReader.POOL)),
        ("parameters of the agent", (KeyReader.AGENT,)),
    ):
        rows = [[f"`{row.key}`", row.values, row.meaning] for row in TABLE if row.reader in readers]
        page = _with_part(page, name, _table(["key", "values", "meaning"], rows).replace("%KINDS%", _kinds()))
    return _with_part(page, "kinds and parameters", _table(["", *_features()], list(_feature_rows())))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _kinds() -> str:
    from tonnage.storage.pools.kinds import MODULES, RENAMED

    old = {new: f" (old name: {old})" for old, new in RENAMED.items()}
    return ", ".join(f"`{kind}`{old.get(kind, '')}" for kind in MODULES)


@cache
def _features() -> Mapping[str, Features]:
    """What each kind of pool offers; a mode that takes other parameters than its kind has a column of its own."""
    from tonnage.storage.pools.kinds import MODULES
    from tonnage.storage.pools.pmem import volume_group

    found: dict[str, Features] = {}
    for kind, module in MODULES.items():
        found[kind] = importlib.import_module(module.replace(".kind", ".backend")).FEATURES
        if kind == volume_group.FEATURES.kind:
            found[f"{kind}, `mode=lvm`"] = volume_group.FEATURES
    return found


def _feature_rows() -> Iterator[list[str]]:
    from tonnage.storage.pools.base.parameters import TABLE, KeyReader

    kinds = _features().values()
    yes = {True: "yes", False: ""}
    yield ["file systems", *(", ".join(kind.fstypes) for kind in kinds)]
    yield ["raw block", *(yes[kind.blocks] for kind in kinds)]
    yield ["snapshots", *(yes[kind.snapshots] for kind in kinds)]
    yield ["clones", *(yes[kind.clones] for kind in kinds)]
    yield ["larger volumes", *(yes[kind.expansion] for kind in kinds)]
    for row in TABLE:
        if row.reader is KeyReader.POOL:
            takes = ("later" if row.key in kind.modifiable else yes[row.key in kind.parameters] for kind in kinds)
            yield [f"`{row.key}`", *takes]


GENERATED: Mapping[str, Callable[[Tree], str]] = {
    "cli.md": cli, "metrics.md": metrics, "events.md": events, "annotations.md": keys, "pool-kinds.md": pool_kinds,
}  # fmt: skip


def pages() -> dict[Path, str]:
    """File -> what it should contain."""
    tree = Tree.read()
    return {PAGES / name: make(tree) for name, make in GENERATED.items()} | {
        ARCHITECTURE: states(ARCHITECTURE.read_text()),
        PARAMETERS: class_parameters(PARAMETERS.read_text()),
    }


def main() -> int:
    """Write the pages, or with --check compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is not current")
    parser.add_argument(
        "--folders", action="store_true", help="only write the table of folders in docs/architecture.md"
    )
    options = parser.parse_args()
    if options.folders:
        page = folders(ROOT)
        ARCHITECTURE.write_text(page)
        return 0
    check = options.check
    stale = {p: text for p, text in pages().items() if not p.exists() or p.read_text() != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'not current; run make reference' if check else 'written'}")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    gc.disable()  # the syntax trees live to the end, and there are millions of nodes to look at
    sys.exit(main())
