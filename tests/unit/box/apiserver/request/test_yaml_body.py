"""YAML bodies: what is read, and what is rejected before it costs much."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage_box.apiserver.request import yaml_body

MAPS = "/api/v1/namespaces/default/configmaps"
YAML = "application/yaml"
HEAD = b"metadata: {name: x, labels: {a: b}}\n"


def flat(keys: int) -> bytes:
    """A ConfigMap in YAML with so many keys."""
    return HEAD + b"data:\n" + b"".join(b"  k%d: v\n" % n for n in range(keys))


@pytest.mark.parametrize("size", [80_000, 3000])  # by a program, and in the loop
async def test_yaml_that_is_nested_deeply(api: Api, size: int) -> None:
    for text in (b"a: " + b"[" * size, b"{a: " * (size // 4), b"- " * (size // 2), b"? " * (size // 2)):
        answer = await api.create(MAPS, text, want=400, content_type=YAML)
        assert "is not valid YAML" in answer["message"]


@pytest.mark.parametrize("depth", [64, 65])
def test_the_depth_of_yaml(depth: int) -> None:
    text = b"[" * depth + b"]" * depth
    if depth > yaml_body.MAX_DEPTH:
        with pytest.raises(ValueError, match="nested more than 64 deep"):
            yaml_body.parse(text)
    else:
        assert json.dumps(yaml_body.parse(text).value) == text.decode()


@pytest.mark.slow
async def test_yaml_of_many_events(api: Api) -> None:
    answer = await api.create(MAPS, flat(200_000), want=400, content_type=YAML)
    assert "more than 100000 events" in answer["message"]
    made = await api.create(MAPS, flat(40_000), content_type=YAML)
    assert len(made["data"]) == 40_000


def test_events_are_counted_before_values_are_built() -> None:
    builder = yaml_body._Builder(yaml_body._Loader(b"[" + b",".join([b"1"] * 200_000) + b"]"))
    with pytest.raises(ValueError, match="more than 100000 events"):
        builder.value()
    assert builder.events == yaml_body.MAX_EVENTS + 1


async def test_large_yaml_is_read_by_another_process(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    parse = yaml_body.parse

    def here(body: bytes) -> Any:
        sizes.append(len(body))
        return parse(body)

    monkeypatch.setattr(yaml_body, "parse", here)
    for keys in (5, 6000):
        await api.create(MAPS, flat(keys), content_type=YAML)
        await api.delete(f"{MAPS}/x")
    assert sizes == [len(flat(5))]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1: a", {"1": "a"}),
        ("true: a", {"true": "a"}),
        ("1.5: a", {"1.5": "a"}),
        ("a: 0x" + "f" * 5000, {"a": "0x" + "f" * 5000}),
        ("a: 1:30", {"a": "1:30"}),
        ("a: 0x10", {"a": 16}),
        ("a: -017", {"a": -15}),
        ("a: 18446744073709551616", {"a": float(2**64)}),
        ("a: 1_000", {"a": 1000}),
        ("a: 1.5e+3", {"a": 1500.0}),
        ("a: 2001-01-01", {"a": "2001-01-01"}),
        ("a: yes\nb: ~\nc:\nd: 'yes'\ne: <<", {"a": True, "b": None, "c": None, "d": "yes", "e": "<<"}),
        ("- {a: [b, {}]}\n- |\n  c\n", [{"a": ["b", {}]}, "c\n"]),
        ("", None),
    ],
)
def test_yaml_as_json(text: str, value: Any) -> None:
    assert yaml_body.parse(text.encode()) == (value, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        b"{[a]: b}",
        b"? {a: b}\n: c",
        b"null: a",
        b"a: .nan",
        b"a: -.inf",
        b"a: !!binary aGk=",
        b"a: !!set {b}",
        b"a: !!timestamp 2001-01-01",
        b"a: !!int x",
        b"a: !!bool x",
        b"a: !x b",
        b"a: &b [c]\nd: *b",
        b"a: 0x" + b"f" * 390,
        b"--- a\n--- b",
        b"\xff",
        b'a: "\\ud800"',
        b"a: [",
    ],
)
async def test_yaml_that_is_no_json(api: Api, text: bytes) -> None:
    for body in (text, text + b"\n#" + b" " * yaml_body.MAX_INSIDE):
        answer = await api.create(MAPS, body, want=400, content_type=YAML)
        assert "the body of the request is not valid YAML: " in answer["message"]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_strict_yaml(api: Api, size: int) -> None:
    body = b"metadata: {name: x}\ndata: {a: " + b"x" * size + b"}\n"
    await api.create(MAPS, body, content_type=YAML, query={"fieldValidation": "Strict"})
    await api.create(MAPS, body + b"u: 1", want=400, content_type=YAML, query={"fieldValidation": "Strict"})


@pytest.mark.parametrize("padding", [0, yaml_body.MAX_INSIDE])  # in the loop, and by a program
async def test_keys_that_yaml_repeats(api: Api, padding: int) -> None:
    body = b'metadata:\n  name: x\n  labels: {a: b, a: c}\nu: 1\ndata:\n  "1": v\n  1: w\n#' + b" " * padding
    lines = ['line 3: key "a" already set in map', 'line 7: key "1" already set in map']
    options = {"content_type": YAML, "query": {"fieldValidation": "Strict"}}
    answer = await api.create(MAPS, body, want=400, **options)
    assert answer["message"] == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
        f'yaml: unmarshal errors:\n  {lines[0]}\n  {lines[1]}, unknown field "u"'
    )
    for word in ("Warn", "", "Ignore"):
        made = await api.send("POST", MAPS, body, content_type=YAML, query={"fieldValidation": word} if word else {})
        assert made.status == 201
        stored = await api.get(f"{MAPS}/x")
        assert (stored["data"], stored["metadata"]["labels"]) == ({"1": "w"}, {"a": "c"})
        shown = ", ".join('299 - "' + text.replace('"', '\\"') + '"' for text in [*lines, 'unknown field "u"'])
        assert made.headers.get("Warning", "") == ("" if word == "Ignore" else shown)
        await api.put(f"{MAPS}/x", body, want=400, **options)
        await api.delete(f"{MAPS}/x")


def test_repeated_keys_are_named_a_thousand_times_at_most() -> None:
    assert len(yaml_body.parse(b"a: 1\n" * 3000).repeated) == yaml_body.MAX_REPEATED
    (line,) = yaml_body.parse((b"k" * 1000 + b": 1\n") * 2).repeated
    assert line == f'line 2: key "{"k" * 256}..." already set in map'
