"""A kind of pool has one room: all that depends on it asks its PoolKind, and nothing else names it."""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import gen_reference
from tests.conformance.benches import BENCHES, GUESTS

from tonnage.base.errors import HostError
from tonnage.node.config import declared_pools, preflight
from tonnage.node.config.declared_pools import DeclaredPoolEntry
from tonnage.storage.pools import kinds
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.device_setup import plan_init
from tonnage.tools.ops.inventory import Direct
from tonnage_box import plan
from tonnage_box.cli import up
from tonnage_box.data_dir import DataFolder, Settings

ROOT = Path(__file__).parents[4]
SOURCE = ROOT / "src"


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that the program does not have: a folder and a row."""
    monkeypatch.setitem(kinds.MODULES, "shelf", "tests.unit.storage.pools.shelf.kind")


def test_every_kind_is_held_against_the_contract() -> None:
    assert BENCHES.keys() | GUESTS == kinds.MODULES.keys()


def test_every_kind_has_a_page() -> None:
    assert {kind.name for kind in kinds.known()} == {path.stem for path in (ROOT / "docs" / "pools").glob("*.md")}


def test_a_description_has_the_options_of_its_kind_and_no_others() -> None:
    for kind in kinds.known():
        fields = set(kind.config.__dataclass_fields__)
        assert {option.field for option in kind.options.values()} <= fields, kind
        assert set(kind.config.LIMITS) <= fields, kind


@pytest.mark.usefixtures("shelf")
def test_a_new_kind_is_described_looked_at_and_made() -> None:
    config = parse("shelf,size=1Gi")
    assert parse(str(config)) == config
    assert make(config).kind == "shelf"
    assert preflight.look(config) == "shelf, 1073741824 bytes"
    with pytest.raises(
        HostError, match=r"shelf pools need label-printer, which was not found .*apt-get install labels"
    ):
        preflight.look(parse("shelf,size=1Gi,labelled=yes"))


@pytest.mark.usefixtures("shelf")
def test_a_new_kind_is_of_the_box_and_of_doctor(tmp_path: Path) -> None:
    made = plan.plan(DataFolder(tmp_path / "d"), Settings(nodes=2, pools=["shelf,size=1Gi"], runtime="none"))
    assert [pool.kind.name for pools in made.nodes.values() for pool in pools] == ["shelf", "shelf"]
    with pytest.raises(HostError, match="label-printer, which was not found"):
        plan.check_programs("none", [parse("shelf,size=1Gi,labelled=yes")])
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    assert "shelf" in parser.format_help()


@pytest.mark.usefixtures("shelf")
def test_a_new_kind_is_in_inventories_and_in_the_docs() -> None:
    (report,) = asyncio.run(Direct([parse("shelf,size=1Gi")], node="n").pools())
    assert (report.kind, report.size) == ("shelf", 1 << 30)
    assert "[shelf](../pools/shelf.md)" in gen_reference.pool_kinds(gen_reference.Tree([]))


@pytest.mark.usefixtures("shelf")
def test_a_new_kind_is_made_of_devices(tmp_path: Path) -> None:
    config = parse("shelf,size=1Gi")
    assert [str(step) for step in plan_init(config, [Path("/dev/null")]).steps] == ["true /dev/null"]
    (declared,) = declared_pools.read([DeclaredPoolEntry("shelf", ["/dev/null"])], [config])
    assert declared_pools.make([declared], lambda _pool, _step: None) == []


@pytest.mark.real  # starts a pytest of its own
def test_a_new_kind_passes_the_contract() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.unit.storage.pools.shelf.plugin",
    ]
    ended = subprocess.run(
        [*command, "tests/conformance/test_pools.py", "-k", "shelf"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "TONNAGE_TEST_POOL": ""},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout


# Who names a kind


INLINE = {"src/tonnage/tools/ops/install/options.py"}
"""Where `image` is a kind of inline driver."""


def test_no_module_but_a_kinds_own_asks_for_a_kind_by_name() -> None:
    pools = SOURCE / "tonnage/storage/pools"
    own = {pools / kind for kind in kinds.MODULES} | {pools / "kinds.py"}
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not own & {path, *path.parents}
        for line in _named(ast.parse(path.read_text()))
        if str(path.relative_to(ROOT)) not in INLINE
    ]
    assert found == []


def test_that_search_finds_what_was_there() -> None:
    for text in (
        'x = pool.kind == "lvm"',
        'x = pool.kind in ("image", "btrfs")',
        'x = config.kind not in {"fake"}',
        'FORMATS = {"image": "ext4", "lvm": "ext4"}',
        'KINDS = ("lvm", "btrfs", "image", "quota")',
        'x = kind == "static" and True',
        'match pool.kind:\n    case "pmem":\n        pass',
    ):
        assert list(_named(ast.parse(text))), text
    for text in ('x = content.kind == "url"', 'FSTYPES = ("ext4", "xfs", "btrfs")', 'spec["image"] = "x"'):
        assert not list(_named(ast.parse(text))), text


def _named(tree: ast.AST) -> Iterator[int]:
    """Lines in which a kind is compared by its name, or several are listed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _is_kind(node.left) and any(map(_names, node.comparators)):
            yield node.lineno
        if isinstance(node, ast.Match) and _is_kind(node.subject) and any(map(_names, node.cases)):
            yield node.lineno
        if isinstance(node, ast.Dict | ast.Set | ast.Tuple | ast.List):
            words = node.keys if isinstance(node, ast.Dict) else node.elts
            listed = {w.value for w in words if isinstance(w, ast.Constant)} & kinds.MODULES.keys()
            if len(listed - {"btrfs"}) > 1 or listed == {"image", "btrfs"}:
                yield node.lineno


def _is_kind(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "kind"


def _names(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in kinds.MODULES for one in ast.walk(node))
