"""Modules of groups are imported when something of them is used, not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.kinds.shared.late import LateModule, LatePart

_LOADED = """
import sys
from tonnage_box.apiserver.kinds import groups
print(*(name for name in sys.modules if name.startswith(groups.__package__)))
"""


def test_the_table_alone_reads_no_columns_and_of_most_groups_no_rules() -> None:
    ended = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    loaded = {name.partition(".kinds.")[2] for name in ended.stdout.split()}
    assert {"core.rows", "core.validation.pod", "network.rows"} <= loaded
    assert not {name for name in loaded if name.endswith(("columns", "warnings"))}
    assert not loaded & {"network.validation", "snapshot.validation", "batch.validation"}


def test_a_part_is_the_function_or_the_sequence() -> None:
    late = LateModule("string")
    assert late.capwords("a b") == "A B"
    assert late.capwords("a-b", sep="-") == "A-B"
    assert list(late.digits) == [*"0123456789"]
    assert (late.digits[1], len(late.digits)) == ("1", 10)


@pytest.mark.parametrize("key", RESOURCES)
def test_every_part_of_a_row_is_there(key: str) -> None:
    """mypy checks the names, but not the texts that name the modules."""
    for part in vars(RESOURCES[key]).values():
        if isinstance(part, LatePart):
            assert callable(part._found()) or len(part)
