"""No request stops the process: what is too deep, too large or too long is refused, by count."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tonnage.api import selectors
from tonnage.box.apiserver.request import yaml_body
from tonnage.box.apiserver.rest import output, writes
from tonnage.box.apiserver.storage import watch
from tonnage.errors import Invalid
from tonnage.kube.transport import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Request

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
REVISIONS = "/apis/apps/v1/namespaces/default/controllerrevisions"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
YAML = "application/yaml"
HEAD = b"metadata: {name: x, labels: {a: b}}\n"


def nested(depth: int, inner: Any = "x") -> Any:
    """A value in so many lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


def flat(keys: int) -> bytes:
    """A ConfigMap in YAML with so many keys."""
    return HEAD + b"data:\n" + b"".join(b"  k%d: v\n" % n for n in range(keys))


@pytest.mark.parametrize("size", [80_000, 3000])  # by a program, and in the loop
async def test_yaml_that_is_nested_deeply(api: Any, size: int) -> None:
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


async def test_yaml_of_many_events(api: Any) -> None:
    answer = await api.create(MAPS, flat(200_000), want=400, content_type=YAML)
    assert "more than 100000 events" in answer["message"]
    made = await api.create(MAPS, flat(40_000), content_type=YAML)
    assert len(made["data"]) == 40_000


def test_events_are_counted_before_values_are_built() -> None:
    builder = yaml_body._Builder(yaml_body._Loader(b"[" + b",".join([b"1"] * 200_000) + b"]"))
    with pytest.raises(ValueError, match="more than 100000 events"):
        builder.value()
    assert builder.events == yaml_body.MAX_EVENTS + 1


async def test_large_yaml_is_read_by_another_process(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_yaml_that_is_no_json(api: Any, text: bytes) -> None:
    for body in (text, text + b"\n#" + b" " * yaml_body.MAX_INSIDE):
        answer = await api.create(MAPS, body, want=400, content_type=YAML)
        assert "the body of the request is not valid YAML: " in answer["message"]


@pytest.mark.parametrize(("depth", "code"), [(63, 201), (64, 400), (100_000, 400)])
async def test_the_depth_of_json(api: Any, depth: int, code: int) -> None:
    body = b'{"metadata":{"name":"x"},"unknown":' + b"[" * depth + b"]" * depth + b"}"
    await api.create(MAPS, body, want=code)


async def test_what_patches_make_of_an_object_is_as_deep(api: Any) -> None:
    await api.create(MAPS, {"metadata": {"name": "x"}, "data": {"a": "b"}})
    path, grown = f"{MAPS}/x", {"op": "add", "path": "/b", "value": nested(40)}
    await api.patch(path, [grown], content_type=JSON_PATCH)
    inner = "/b" + "/0" * 39
    for patch in (
        [grown, {"op": "add", "path": f"{inner}/0", "value": nested(40)}],
        [grown, {"op": "copy", "from": "/b", "path": f"{inner}/0"}],
        [{"op": "add", "path": "/b" + "/c" * n, "value": {}} for n in range(300)],
    ):
        answer = await api.patch(path, patch, want=400, content_type=JSON_PATCH)
        assert "nested" in answer["message"]
    deep: Any = "x"
    for _ in range(64):
        deep = {"a": deep}
    for kind in (MERGE_PATCH, STRATEGIC_PATCH):
        await api.patch(path, {"b": deep["a"]}, content_type=kind)
        answer = await api.patch(path, {"b": deep}, want=400, content_type=kind)
        assert "nested more than 64 deep" in answer["message"]
    assert (await api.get(path))["data"] == {"a": "b"}


HEAD_OF_JSON = b'{"metadata":{"name":"x"},"unknown":'


@pytest.mark.parametrize(
    ("items", "joint"),
    [
        ([b"{}"] * 50_000, b"[%s]"),
        ([b"1"] * 100_000, b"[%s]"),
        ([b'"x"'] * 100_000, b"[%s]"),
        ([b'"k%d":1' % n for n in range(50_000)], b"{%s}"),
        ([b'{"a":[1]}'] * 25_000, b"[%s]"),
    ],
    ids=["objects", "numbers", "texts", "keys", "nested"],
)
async def test_many_keys_and_values_in_json(api: Any, items: list[bytes], joint: bytes) -> None:
    fewer = HEAD_OF_JSON + joint % b",".join(items[: len(items) * 99 // 100]) + b"}"
    for content_type, verb, path in (("application/json", "POST", MAPS), (MERGE_PATCH, "PATCH", f"{MAPS}/x")):
        await api.call(verb, path, fewer, content_type=content_type, want=201 if verb == "POST" else 200)
        more = HEAD_OF_JSON + joint % b",".join(items) + b"}"
        answer = await api.call(verb, path, more, content_type=content_type, want=400)
        assert answer["message"] == "the body of the request has more than 100000 keys and values"


@pytest.mark.parametrize("text", [",:{[" * 50_000, '",' * 50_000, '\\",\\' * 50_000, "\\" * 100_000 + ","])
async def test_texts_are_one_value_whatever_they_hold(api: Any, text: str) -> None:
    await api.create(MAPS, {"metadata": {"name": "x"}, "data": {"a": text, "b": "c"}})
    assert (await api.get(f"{MAPS}/x"))["data"] == {"a": text, "b": "c"}


async def test_an_object_does_not_grow_beyond_a_body(api: Any) -> None:
    path = f"{PODS}/x"
    await api.create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    for n in range(8):
        patch = {"status": {"conditions": [{"type": f"a{n}", "status": "True", "message": "x" * 900_000}]}}
        want = 200 if n < 6 else 413  # twice a body: no more than that in its status, and nothing else then
        answer = await api.patch(f"{path}/status", patch, content_type=STRATEGIC_PATCH, want=want)
    assert answer["reason"] == "RequestEntityTooLarge"
    assert "the object would have more than 6291456 bytes" in answer["message"]
    answer = await api.patch(path, {"metadata": {"annotations": {"a": "b"}}}, want=413)
    assert "more than 3145728 bytes" in answer["message"]
    assert len((await api.get(path))["status"]["conditions"]) == 6
    await api.patch(f"{path}/status", {"status": {"conditions": []}})
    await api.patch(path, {"metadata": {"annotations": {"a": "b"}}})


async def test_an_object_has_so_many_values_with_its_defaults(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def containers(count: int) -> Any:
        return {
            "metadata": {"name": "x"},
            "spec": {"containers": [{"name": f"c{n}", "image": "i"} for n in range(count)]},
        }

    await api.create(PODS, containers(7500))
    answer = await api.create(PODS, containers(9000), want=413)
    assert "more than 100000 keys and values, with its defaults" in answer["message"]
    monkeypatch.setattr(writes, "MAX_VALUES", 50_000)  # as if the object were from before the bound
    more = {"metadata": {"labels": {"a": "b"}}}
    await api.patch(f"{PODS}/x", more, want=413)
    await api.patch(f"{PODS}/x/status", {"status": {"phase": "Running"}})
    await api.patch(f"{PODS}/x", more, want=413)
    monkeypatch.setattr(writes, "MAX_VALUES", 10_000)
    await api.patch(f"{PODS}/x/status", {"status": {"message": "m"}}, want=413)
    await api.patch(f"{PODS}/x/status", {"status": {"phase": "Failed"}})
    await api.delete(f"{PODS}/x")


async def test_copies_of_a_patch_have_so_many_values(api: Any) -> None:
    await api.create(MAPS, {"metadata": {"name": "x"}, "u": {}})
    grown = [{"op": "add", "path": "/b", "value": [1] * 1000}]
    copies = [{"op": "copy", "from": "/b", "path": f"/c{n}"} for n in range(200)]
    answer = await api.patch(f"{MAPS}/x", grown + copies, want=413, content_type=JSON_PATCH)
    assert "more than 200000 keys and values" in answer["message"]


async def test_bodies_of_3_mib(api: Any) -> None:
    head = b'{"metadata":{"name":"x"}}'
    await api.create(MAPS, head + b" " * ((3 << 20) - len(head)))
    for method, path, content_type in (
        ("POST", MAPS, "application/json"),
        ("POST", MAPS, YAML),
        ("PUT", f"{MAPS}/x", "application/json"),
        ("PATCH", f"{MAPS}/x", STRATEGIC_PATCH),
        ("DELETE", f"{MAPS}/x", "application/json"),
    ):
        body = head + b" " * ((3 << 20) + 1 - len(head))
        answer = await api.call(method, path, body, want=413, content_type=content_type)
        assert answer["message"] == "Request entity too large: limit is 3145728"
        assert answer["reason"] == "RequestEntityTooLarge"


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 20, "-" + "9" * 20])
async def test_whole_numbers_of_many_digits(api: Any, number: str) -> None:
    for path, fields in (
        (MAPS, '"metadata":{"name":"x","generation":%s}'),
        (REVISIONS, '"metadata":{"name":"x"},"revision":1,"data":{"a":[%s]}'),
        (PODS, '"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":%s}}}]}'),
    ):
        await api.create(path, ("{" + fields % number + "}").encode(), want=400)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "9" * 400},
        {"limit": "-1"},
        {"limit": "٣"},
        {"continue": "9" * 400},
        {"continue": "A" * 60_000},
        {"continue": "é"},
        {"resourceVersion": "9" * 400},
        {"timeoutSeconds": "9" * 400},
        {"labelSelector": "a" + " " * 60_000 + "("},
        {"labelSelector": "a in" + " " * 60_000},
        {"labelSelector": "!" * 60_000},
        {"labelSelector": "a," * 20_000},
        {"fieldSelector": "x" * 60_000},
        {"fieldSelector": "metadata.name!=a," * 3000},
        {"watch": "1" * 60_000},
    ],
)
async def test_odd_queries(api: Any, query: dict[str, str]) -> None:
    answer = await api.get(MAPS, query=query, want=400)
    assert len(answer["message"]) < 1000


async def test_the_largest_numbers_of_a_query(api: Any) -> None:
    await api.get(MAPS, query={"limit": str(2**63 - 1)})
    await api.get(MAPS, query={"labelSelector": "a>" + "9" * 5000})


def test_a_selector_has_a_thousand_requirements_at_most() -> None:
    assert len(selectors.parse_labels("a," * 999 + "b").requirements) == selectors.MAX_REQUIREMENTS
    for parse, part in ((selectors.parse_labels, "a"), (selectors.parse_fields, "a=b")):
        with pytest.raises(Invalid, match="at most 1000 requirements"):
            parse(",".join([part] * 1001))


@pytest.mark.parametrize(
    "time",
    [
        "2024-99-99T00:00:00.000000Z",
        "2023-02-29T00:00:00.000000Z",
        "0000-01-01T00:00:00.000000Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2024-01-01T24:00:00.000000Z\n",
        "２０２４-01-01T00:00:00.000000Z",
    ],
)
async def test_times_that_do_not_exist(api: Any, time: str) -> None:
    answer = await api.create(LEASES, {"metadata": {"name": "x"}, "spec": {"renewTime": time}}, want=400)
    assert "parsing time" in answer["message"]


async def test_a_leap_day_exists(api: Any) -> None:
    made = await api.create(LEASES, {"metadata": {"name": "x"}, "spec": {"renewTime": "2024-02-29T00:00:00.000000Z"}})
    assert made["spec"]["renewTime"] == "2024-02-29T00:00:00.000000Z"


@pytest.mark.parametrize("grace", [2**62, 2**63 - 1])
async def test_a_grace_period_that_never_ends(api: Any, grace: int) -> None:
    spec = {"nodeName": "n", "terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}
    for name, query, body in (("a", None, None), ("b", {"gracePeriodSeconds": str(grace)}, None), ("c", None, grace)):
        await api.create(PODS, {"metadata": {"name": name}, "spec": spec})
        options = {"gracePeriodSeconds": body} if body is not None else None
        gone = await api.delete(f"{PODS}/{name}", options, query=query)
        assert gone["metadata"]["deletionTimestamp"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("field", ["maxSurge", "maxUnavailable"])
async def test_percentages_of_many_digits(api: Any, field: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    rolling = {"strategy": {"rollingUpdate": {field: "9" * 5000 + "%"}}}
    path = "/apis/apps/v1/namespaces/default/deployments"
    await api.create(path, {"metadata": {"name": "x"}, "spec": spec | rolling}, want=422)
    budget = {"metadata": {"name": "x"}, "spec": {"selector": {}, "minAvailable": "9" * 5000 + "%"}}
    await api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget, want=422)


@pytest.mark.parametrize("schedule", ["9" * 5000 + " * * * *", "*/" + "9" * 5000 + " * * * *", "*/٣ * * * *"])
async def test_schedules_of_many_digits(api: Any, schedule: str) -> None:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    spec = {"schedule": schedule, "jobTemplate": {"spec": {"template": pod}}}
    await api.create("/apis/batch/v1/namespaces/default/cronjobs", {"metadata": {"name": "x"}, "spec": spec}, want=422)


async def test_faults_and_warnings_of_an_answer_are_few(api: Any) -> None:
    containers = [{"name": f"C{n}", "image": "i"} for n in range(3000)]
    answer = await api.create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": containers}}, want=422)
    assert len(answer["details"]["causes"]) == 1001
    assert answer["details"]["causes"][-1]["message"] == "and 2000 more faults"
    odd = {"metadata": {"name": "x"}} | {f"u{n}": "v" for n in range(3000)}
    made = await api.send("POST", MAPS, odd)
    assert made.status == 201
    assert len(made.headers["Warning"]) < 5000


async def test_large_objects_are_worked_on_outside_the_loop(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[bool] = set()

    def fields(*arguments: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return check(*arguments)

    check = writes.check_fields
    monkeypatch.setattr(writes, "check_fields", fields)
    for size, here in ((100, True), (100_000, False)):
        threads.clear()
        data = {"data": {"a": "x" * size}}
        await api.create(MAPS, {"metadata": {"name": "x"}} | data)
        await api.put(f"{MAPS}/x", {"metadata": {"name": "x"}, "data": {"b": "x" * size}})
        await api.patch(f"{MAPS}/x", data)
        await api.delete(f"{MAPS}/x")
        assert threads == {here}


async def test_long_lists_are_made_outside_the_loop(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[bool] = set()

    def rendered(*arguments: Any) -> bytes:
        threads.add(threading.current_thread() is threading.main_thread())
        return render(*arguments)

    render = output.render_list
    monkeypatch.setattr(output, "render_list", rendered)
    for n in range(300):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}})
    assert len((await api.get(MAPS))["items"]) == 300
    assert threads == {False}
    assert len((await api.get(MAPS, query={"limit": "10"}))["items"]) == 10
    assert threads == {False, True}


async def test_a_watch_that_begins_with_many_objects_lets_the_loop_turn(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(600):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}})
    await api.create(MAPS, {"metadata": {"name": "y", "labels": {"a": "b"}}})
    looks, most, selects = 0, 0, watch.Filter.selects

    def counted(self: watch.Filter, record: Any) -> bool:
        nonlocal looks
        looks += 1
        return selects(self, record)

    async def turn() -> None:
        nonlocal looks, most
        while True:
            most, looks = max(most, looks), 0
            await asyncio.sleep(0)

    monkeypatch.setattr(watch.Filter, "selects", counted)
    async with api.watch(MAPS, labelSelector="a=b") as watching:
        turning = asyncio.ensure_future(turn())
        await asyncio.sleep(0)
        assert (await watching.next())[1]["metadata"]["name"] == "y"
        await asyncio.sleep(0)
        turning.cancel()
    assert 0 < most <= watch.SLICE


@pytest.mark.parametrize("size", [10, 100_000])
async def test_strict_yaml(api: Any, size: int) -> None:
    body = b"metadata: {name: x}\ndata: {a: " + b"x" * size + b"}\n"
    await api.create(MAPS, body, content_type=YAML, query={"fieldValidation": "Strict"})
    await api.create(MAPS, body + b"u: 1", want=400, content_type=YAML, query={"fieldValidation": "Strict"})


@pytest.mark.parametrize("padding", [0, yaml_body.MAX_INSIDE])  # in the loop, and by a program
async def test_keys_that_yaml_repeats(api: Any, padding: int) -> None:
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


async def turned(work: Any, count: Callable[[], int]) -> int:
    """Do the work; the most by which the count grew in one turn of the loop."""
    most, before, done = 0, count(), False

    async def turn() -> None:
        nonlocal most, before
        while not done:
            await asyncio.sleep(0)
            now = count()
            most, before = max(most, now - before), now

    turning = asyncio.ensure_future(turn())
    await asyncio.sleep(0)
    await work
    done = True
    await turning
    return most


async def test_one_turn_of_the_loop_brings_events_to_so_many_watchers(api: Any) -> None:
    hub = api.server.hub
    async with AsyncExitStack() as stack:
        streams = [api.transport.stream(Request("GET", MAPS, {"watch": "1"})) for _ in range(200)]
        opened = [await stack.enter_async_context(stream) for stream in streams]
        names = [f"x{n}" for n in range(10)]
        # A store in memory shows all of them in one turn, as a commit of SQLite does.
        work = asyncio.gather(*(api.create(MAPS, {"metadata": {"name": name}}) for name in names))
        most = await turned(work, lambda: hub.examined)
        while hub._backlog:
            await asyncio.sleep(0)
        assert hub.examined == 2000
        assert 0 < most <= 2 * watch.SLICE  # what was left of this turn, and the next
        for chunks in opened:  # each has all, in order
            seen: list[str] = []
            while len(seen) < 10:
                lines = (await anext(chunks)).splitlines()
                seen += [json.loads(line)["object"]["metadata"]["name"] for line in lines]
            assert seen == names


async def test_a_large_object_is_rendered_once_in_a_turn(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    outward = output.outward

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        return outward(*arguments)

    monkeypatch.setattr(output, "outward", counted)
    table = "application/json;as=Table;v=%s;g=meta.k8s.io"
    async with AsyncExitStack() as stack:
        for version in ("v1", "v1beta1"):
            for included in ("None", "Metadata", "Object"):
                query = {"watch": "1", "includeObject": included}
                request = Request("GET", MAPS, query, accept=table % version)
                await stack.enter_async_context(api.transport.stream(request))
        work = api.create(MAPS, {"metadata": {"name": "x"}, "data": {"a": "x" * 900_000}})
        assert await turned(work, lambda: made) <= 2
        while api.server.hub._backlog:
            await asyncio.sleep(0)
        assert made == 6


async def test_a_collection_is_deleted_some_objects_in_a_turn(api: Any) -> None:
    for n in range(500):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}})
    store = api.server.store
    most = await turned(api.delete(MAPS), lambda: 500 - store.count("configmaps"))
    assert store.count("configmaps") == 0
    assert 0 < most <= 2 * writes._TOGETHER


@pytest.mark.parametrize("accept", ["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"])
async def test_pretty_lists_are_the_same(api: Any, accept: str) -> None:
    for n in range(3):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}, "data": {"a": 'b\n"[]"', "c": ""}})
    for query in ({}, {"labelSelector": "a=b"}):
        plain = await api.send("GET", MAPS, query=query, accept=accept)
        pretty = await api.send("GET", MAPS, query=query | {"pretty": "true"}, accept=accept)
        value = json.loads(plain.body)
        assert json.loads(pretty.body) == value
        assert len(value.get("items", value.get("rows"))) == (0 if query else 3)
        assert pretty.body.decode() == json.dumps(value, indent=2, ensure_ascii=False) + "\n"
