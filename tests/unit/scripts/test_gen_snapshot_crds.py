"""The definitions that `tonnage manifests --snapshot-crds` prints. Real API servers judge them in tests/e2e."""

from __future__ import annotations

from typing import Any

import pytest
from scripts import gen_snapshot_crds
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.api import api as api
from tests.yaml_texts import read_all

from tonnage.kubernetes.api.kinds import DEFINITIONS
from tonnage.tools.cli.main import main
from tonnage_box.apiserver.kinds.snapshot import validation as rules

MESSAGES = [
    rules.ONE_SOURCE, rules.ONE_HANDLE, rules.NO_EMPTY_CLASS, rules.WHOLE_REF, rules.required_once_set(rules.MODE),
    rules.immutable(rules.MODE),
    *(rules.immutable(field) for field in (rules.CLAIM, rules.CONTENT, rules.VOLUME, rules.SNAPSHOT)),
    *(rules.required_once_set(field) for field in (rules.CLAIM, rules.CONTENT, rules.VOLUME, rules.SNAPSHOT)),
    rules.ONE_GROUP_SOURCE, rules.ONE_GROUP_HANDLE, rules.NO_EMPTY_GROUP_CLASS, rules.WHOLE_GROUP_REF, rules.SAME_REF, rules.SAME_UID,
    rules.SAME_PARAMETERS,
    *(rules.immutable(field) for field in (rules.SELECTOR, rules.GROUP_CONTENT, rules.VOLUMES, rules.HANDLES)),
    *(rules.required_once_set(field) for field in (rules.SELECTOR, rules.GROUP_CONTENT, rules.VOLUMES, rules.HANDLES)),
    *map(rules.immutable_once_set, ("driver", "driver", "deletionPolicy", rules.GROUP_CLASS, rules.GROUP_BOUND, rules.GROUP_HANDLE)),
]  # fmt: skip


def test_the_file_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert gen_snapshot_crds.FILE.read_text() == gen_snapshot_crds.text()
    assert main(["manifests", "--snapshot-crds"]) == 0
    assert capsys.readouterr().out == gen_snapshot_crds.text()


def test_they_have_every_message_once() -> None:
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(rule["message"] for rule in value.get("x-kubernetes-validations", ()))
            assert "$ref" not in value
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(list(read_all(gen_snapshot_crds.text())))
    assert sorted(found) == sorted(MESSAGES)


async def test_a_box_takes_them(api: Api) -> None:
    for body in read_all(gen_snapshot_crds.text()):
        made = await api.create(DEFINITIONS.path(), body, query={"fieldValidation": "Strict"})
        assert made["status"]["storedVersions"] == ["v1"]
