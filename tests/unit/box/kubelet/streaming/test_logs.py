"""The query of pods/log: any text has an answer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiError
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.streaming import logs
from tonnage_box.testing.clock import ManualClock


@pytest.mark.parametrize("key", ["sinceSeconds", "tailLines", "limitBytes"])
@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "-" + "9" * 400, "-1", "x", "1_0", "٣"])
def test_numbers_that_are_none(key: str, text: str) -> None:
    with pytest.raises(ApiError) as rejected:
        logs.parse({key: text}, ManualClock())
    assert rejected.value.code in (400, 422)


def test_since_ever() -> None:
    everything = b"1970-01-01T00:00:00.000000000Z"
    for query in (
        {"sinceSeconds": str(2**63 - 1)},
        {"sinceTime": "0001-01-01T00:00:00Z"},
        {"sinceTime": "1960-01-01T00:00:00Z"},
    ):
        assert logs.parse(query, ManualClock()).since == everything


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "x"])
def test_since_a_time_at_the_end_of_the_calendar(text: str) -> None:
    with suppress(ApiError):
        assert logs.parse({"sinceTime": text}, ManualClock()).since


@given(
    old=st.lists(st.integers(0, 200_000), max_size=4),
    new=st.lists(st.integers(0, 200_000), max_size=4),
    tail=st.integers(0, 10),
)
def test_the_tail_is_what_tail_says(
    tmp_path_factory: pytest.TempPathFactory, old: list[int], new: list[int], tail: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    path = folder / "0.log"
    parts = [[b"%d %s\n" % (n, b"y" * size) for n, size in enumerate(sizes)] for sizes in (old, new)]
    path.write_bytes(b"".join(parts[1]))
    if old:
        Path(f"{path}.1").write_bytes(b"".join(parts[0]))
    before, offset = logs.tail_start(str(path), tail)
    text = Path(f"{path}.1").read_bytes()[before:] if before >= 0 else b""
    text += path.read_bytes()[offset:]
    lines = parts[0] + parts[1]
    assert text == b"".join(lines[len(lines) - min(tail, len(lines)) :])


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"tailLines": "-1"}, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"limitBytes": "0"}, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"tailLines": "x"}, "tailLines='x' is not a number"),
        ({"sinceSeconds": "1", "sinceTime": "2020-01-01T00:00:00Z"}, "at most one of"),
        ({"sinceTime": "yesterday"}, "is not an RFC 3339 time"),
        ({"follow": "perhaps"}, "want true or false"),
        ({"colour": "red"}, "unknown option colour"),
        ({"stream": "Stdwhat"}, "Unsupported value"),
    ],
)
def test_log_options_that_are_wrong(query: dict[str, str], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        logs.parse(query, RealClock())


def test_the_time_limit_of_a_request_is_no_option_of_logs() -> None:
    assert logs.parse({"timeout": "20s", "tailLines": "1"}, RealClock()).tail == 1


def test_a_container_must_be_named_where_there_are_several() -> None:
    pod = Pod()
    with pytest.raises(ApiError, match="a container name must be specified for pod"):
        logs.choose(pod, "")
    with pytest.raises(ApiError, match="container x is not valid for pod"):
        logs.choose(pod, "x")
