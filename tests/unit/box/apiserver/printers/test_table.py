from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tonnage_box.apiserver.printers import table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OBJ = {"kind": "Pod", "metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"a": 1}}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (599, "9m59s"),
        (600, "10m"), (10799, "179m"), (10800, "3h"), (3 * 3600 + 60, "3h1m"), (8 * 3600, "8h"), (47 * 3600, "47h"),
        (48 * 3600, "2d"), (49 * 3600, "2d1h"), (8 * 86400, "8d"), (729 * 86400, "729d"), (730 * 86400, "2y"),
        (731 * 86400, "2y1d"), (3000 * 86400, "8y"),
    ],
)  # fmt: skip
def test_durations_as_kubectl_shows_them(seconds: float, shown: str) -> None:
    assert table.duration(seconds) == shown


def test_age_without_a_time_is_unknown() -> None:
    assert table.age(None, NOW) == "<unknown>"


@pytest.mark.parametrize(
    ("include", "shown"),
    [
        pytest.param(
            "Metadata",
            {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": OBJ["metadata"]},
            id="metadata",
        ),
        pytest.param("Object", OBJ, id="object"),
        pytest.param("None", None, id="none"),
    ],
)
def test_rows_carry_as_much_of_the_object_as_is_asked_for(include: table.Include, shown: object) -> None:
    assert table.row((table.NAME,), OBJ, NOW, include).get("object") == shown


def test_a_kind_without_columns_shows_name_and_time() -> None:
    made = table.table((), [OBJ], NOW, "Metadata", {"resourceVersion": "7"})
    assert [c["name"] for c in made["columnDefinitions"]] == ["Name", "Created At"]
    assert made["rows"][0]["cells"] == ["x", "2026-01-01T00:00:00Z"]
    assert made["metadata"] == {"resourceVersion": "7"}
