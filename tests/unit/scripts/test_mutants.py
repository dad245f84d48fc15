"""Which faults `make mutants` makes, and that it tells found ones from others."""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path

import pytest
from scripts import mutants

ROOT = Path(__file__).parents[3]
BEFORE = "async def f(self, a, b):\n"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("return a < b", {"return (a <= b)"}),
        ("return a - 1", {"return (a + 1)", "return a - 2"}),
        ("return a and b and c", {"return ((b) and (c))", "return ((a) and (c))", "return ((a) and (b))"}),
        ("await a.write(b)", {"pass"}),
        ("self.a = b", {"pass"}),
        ("a.write(); b.commit()", {"pass; b.commit()", "a.write(); pass", "b.commit(); a.write()"}),
        ("raise KeyError(a + b)", {"raise RuntimeError(a + b)"}),
        ("return a if b else None", {"return a if True else None", "return a if False else None"}),
        ("return [c for c in a if c.b]", {"return [c for c in a if True]", "return [c for c in a if False]"}),
        ("with suppress(OSError): a = b", {"with suppress(): a = b"}),
        ("log.info('a', a + 1)", set()),
        ("metrics.A.inc(a + 1); return f'{a + 1}'", set()),
        ("a = b == True", set()),
    ],
)
def test_a_mutant_has_one_change_that_may_matter(line: str, changed: set[str]) -> None:
    text = f"{BEFORE}    {line}\n"
    found = list(mutants.mutants(text, 1))
    assert {mutant for _, mutant in found} == {f"{BEFORE}    {after}\n" for after in changed}
    assert all(at == 2 for at, _ in found)


def test_a_condition_a_return_and_an_exception_are_changed() -> None:
    text = f"{BEFORE}    try:\n        if a:\n            b = 'é'\n            return b\n    except OSError:\n        b = a\n"
    found = {(line, mutant) for line, mutant in mutants.mutants(text, 1)}
    assert found == {
        (3, text.replace("if a", "if True")),
        (3, text.replace("if a", "if False")),
        (5, text.replace("return b", "pass")),
        (6, text.replace("OSError", "ZeroDivisionError")),
    }


@pytest.mark.parametrize("name", mutants.TESTS)
def test_each_file_has_tests_and_mutants_in_an_order_of_the_seed(name: str) -> None:
    text = (ROOT / ("src" if name.startswith("tonnage_box/") else "src/tonnage") / name).read_text()
    first, again, other = (list(islice(mutants.mutants(text, seed), 10)) for seed in (1, 1, 2))
    assert len(set(first)) == 10
    assert first == again
    assert set(first) != set(other)
    assert all(ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(text)) for _, mutant in first)
    paths = [ROOT / word for group in mutants.TESTS[name] for word in group if word.startswith("tests/")]
    assert all(path.exists() for path in paths)


@pytest.mark.slow
def test_a_mutant_is_found_by_a_failure_or_by_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tests = tmp_path / "src/tonnage/counted.py", tmp_path / "tests"
    source.parent.mkdir(parents=True)
    tests.mkdir()
    text = "def down(a):\n    while a > 0:\n        a -= 1\n    return a\n"
    source.write_text(text)
    (source.parent / "__init__.py").touch()
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('test', max_examples=1)\n"
    )
    (tests / "test_small.py").write_text("def test_small(): pass\n")
    (tests / "test_counted.py").write_text("from tonnage.counted import down\ndef test_down(): assert down(2) == 0\n")
    monkeypatch.setitem(mutants.TESTS, "counted.py", (("tests/test_small.py",), ("tests/test_counted.py",)))
    bench = mutants.Bench(tmp_path, Path("src/tonnage/counted.py"), least=1.0)
    assert not bench.is_found(text.replace("> 0", "> 0.5"))
    assert bench.is_found(text.replace("> 0", ">= 0"))
    assert bench.is_found(text.replace("a -= 1", "pass"))
    monkeypatch.setitem(mutants.TESTS, "counted.py", (("tests/test_none.py",),))
    with pytest.raises(SystemExit, match=r"tests fail without a mutant: tests/test_none\.py"):
        mutants.Bench(tmp_path, Path("src/tonnage/counted.py")).is_found(text)
