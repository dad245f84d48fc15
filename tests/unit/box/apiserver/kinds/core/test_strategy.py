"""What clients may not set, when an object is made or updated."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tonnage_box.apiserver.kinds.core import strategy

Obj = dict[str, Any]
CLAIM = {"kind": "PersistentVolumeClaim", "name": "a"}
SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a"}
FOREIGN = {"apiGroup": "x.y", "kind": "Z", "name": "a"}


class TestStrategy:
    def test_a_client_cannot_make_a_pod_that_runs_already(self) -> None:
        new: Obj = {"spec": {}, "status": {"phase": "Running"}}
        strategy.pod(new, None)
        assert new["status"] == {"phase": "Pending", "qosClass": "BestEffort"}

    def test_a_gated_pod_says_that_it_is_not_scheduled(self) -> None:
        new: Obj = {"metadata": {"creationTimestamp": "now"}, "spec": {"schedulingGates": [{"name": "g"}]}}
        strategy.pod(new, None)
        condition = new["status"]["conditions"][0]
        assert (condition["reason"], condition["lastTransitionTime"]) == ("SchedulingGated", "now")

    def test_a_claim_cannot_be_made_bound(self) -> None:
        new: Obj = {"spec": {}, "status": {"phase": "Bound"}}
        strategy.claim(new, None)
        assert new["status"] == {"phase": "Pending"}

    @pytest.mark.parametrize(
        ("spec", "source", "ref"),
        [
            pytest.param({"dataSource": CLAIM}, CLAIM, CLAIM, id="source fills ref"),
            pytest.param({"dataSourceRef": CLAIM}, CLAIM, CLAIM, id="ref fills source"),
            pytest.param({"dataSource": SNAPSHOT}, SNAPSHOT, SNAPSHOT, id="snapshot"),
            pytest.param({"dataSourceRef": FOREIGN}, FOREIGN, FOREIGN, id="any kind fills source"),
            pytest.param({"dataSourceRef": {**FOREIGN, "namespace": ""}}, FOREIGN, {**FOREIGN, "namespace": ""}, id='""'),
            pytest.param({"dataSourceRef": {**CLAIM, "namespace": "n"}}, None, {**CLAIM, "namespace": "n"}, id="namespace"),
            pytest.param({"dataSource": FOREIGN}, None, None, id="another kind as source alone is dropped"),
            pytest.param({"dataSource": {**CLAIM, "apiGroup": "x.y"}}, None, None, id="so is another group"),
            pytest.param({"dataSource": FOREIGN, "dataSourceRef": FOREIGN}, FOREIGN, FOREIGN, id="both"),
        ],
    )  # fmt: skip
    def test_data_sources_fill_each_other(self, spec: Obj, source: Obj | None, ref: Obj | None) -> None:
        spec = copy.deepcopy(spec)
        strategy.claim({"spec": spec}, None)
        assert (spec.get("dataSource"), spec.get("dataSourceRef")) == (source, ref)

    @pytest.mark.parametrize(
        ("before", "sent", "after"),
        [
            pytest.param({"dataSource": FOREIGN, "dataSourceRef": FOREIGN}, {"dataSource": FOREIGN}, None, id="old client"),
            pytest.param({"dataSource": CLAIM, "dataSourceRef": CLAIM}, {"dataSourceRef": CLAIM}, None, id="new client"),
            pytest.param({"dataSourceRef": FOREIGN}, {"dataSourceRef": FOREIGN}, None, id="stored with the ref only"),
            pytest.param({}, {"dataSource": FOREIGN}, {}, id="a source that never was"),
            pytest.param({}, {"dataSource": CLAIM}, {"dataSource": CLAIM, "dataSourceRef": CLAIM}, id="to be rejected"),
            pytest.param({"dataSource": CLAIM, "dataSourceRef": CLAIM}, {}, {}, id="taken off: to be rejected"),
        ],
    )  # fmt: skip
    def test_an_update_that_leaves_one_source_out_changes_nothing(
        self, before: Obj, sent: Obj, after: Obj | None
    ) -> None:
        stored, spec = copy.deepcopy(before), copy.deepcopy(sent)
        strategy.claim({"spec": spec}, {"spec": stored})
        assert spec == (before if after is None else after)
        assert stored == before

    def test_a_namespace_is_held_by_its_controller(self) -> None:
        new: Obj = {"metadata": {"name": "n"}}
        strategy.namespace(new, None)
        assert new["spec"] == {"finalizers": ["kubernetes"]}

    def test_string_data_is_written_never_stored(self) -> None:
        new: Obj = {"data": {"a": "YQ=="}, "stringData": {"a": "b", "c": "d"}}
        strategy.secret(new, None)
        assert new == {"data": {"a": "Yg==", "c": "ZA=="}}
