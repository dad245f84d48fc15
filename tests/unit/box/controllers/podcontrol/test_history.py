"""ControllerRevisions: one for each template, numbered anew when a template comes back."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.kinds import CONTROLLER_REVISIONS, STATEFUL_SETS
from tonnage.kubernetes.api.meta import LabelSelector, ObjectMeta
from tonnage.kubernetes.api.workloads import ControllerRevision, StatefulSet, StatefulSetSpec
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.podcontrol.history import RevisionHistory, beyond, template_of


def template(image: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}}


def owner(image: str) -> StatefulSet:
    selector = LabelSelector(match_labels={"a": "b"})
    spec = StatefulSetSpec(template=template(image), selector=selector, revision_history_limit=0)
    return StatefulSet(metadata=ObjectMeta(name="web", namespace="default", uid="u"), spec=spec)


async def test_a_template_that_comes_back_is_the_same_revision_with_a_higher_number(
    kube: Client, informers: Informers, events: EventRecorder
) -> None:
    history = RevisionHistory(ControllerContext(kube, informers, events), STATEFUL_SETS)
    first, _ = await history.ensure(owner("v1"))
    second, _ = await history.ensure(owner("v2"))
    again, collisions = await history.ensure(owner("v1"))
    assert [first.revision, second.revision, again.revision] == [1, 2, 3]
    assert again.metadata.name == first.metadata.name
    assert collisions is None
    assert template_of(again) == template("v1")
    assert [r.metadata.name for r in history.of(owner("v1"))] == [second.metadata.name, first.metadata.name]
    await history.trim(owner("v1"), ())
    assert (await kube.list(CONTROLLER_REVISIONS)).items == []


async def test_a_name_that_is_taken_is_counted(kube: Client, informers: Informers, events: EventRecorder) -> None:
    history = RevisionHistory(ControllerContext(kube, informers, events), STATEFUL_SETS)
    first, _ = await history.ensure(owner("v1"))
    name = first.metadata.name
    await history.trim(owner("v1"), ())
    await kube.create(CONTROLLER_REVISIONS, {"metadata": {"name": name}, "revision": 1, "data": {}}, "default")
    other = RevisionHistory(ControllerContext(kube, Informers(kube), events), STATEFUL_SETS)
    second, collisions = await other.ensure(owner("v1"))
    assert collisions == 1
    assert second.metadata.name != name


@pytest.mark.parametrize(("limit", "gone"), [(None, []), (0, ["a", "b"]), (1, ["a"]), (2, [])])
def test_revisions_beyond_the_limit_do_not_count_those_in_use(limit: int | None, gone: list[str]) -> None:
    revisions = [ControllerRevision(metadata=ObjectMeta(name=name)) for name in ("a", "used", "b")]
    assert [r.metadata.name for r in beyond(revisions, {"used"}, limit)] == gone


@pytest.mark.parametrize("data", [{}, {"spec": []}, {"spec": {"template": "x"}}])
def test_a_revision_without_a_template_is_rejected(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="it holds no pod template"):
        template_of(ControllerRevision(data=data))
