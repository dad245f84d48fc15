"""Kinds: where their objects are on an API server."""

from __future__ import annotations

import pytest

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import kinds


def test_paths_of_lists_objects_and_subresources() -> None:
    assert kinds.NODES.path() == "/api/v1/nodes"
    assert kinds.NODES.path(name="n1") == "/api/v1/nodes/n1"
    assert kinds.PODS.path() == "/api/v1/pods"
    assert kinds.PODS.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert kinds.CAPACITIES.path("ns") == "/apis/storage.k8s.io/v1/namespaces/ns/csistoragecapacities"


@pytest.mark.parametrize("name", ["..", "a/b", "a%2Fb"])
def test_a_name_that_leads_elsewhere_is_no_objects(name: str) -> None:
    with pytest.raises(ApiNotFoundError):
        kinds.PODS.path("ns", name)


def test_each_kind_is_found_by_its_name_and_decodes_its_objects() -> None:
    assert len(kinds.BY_KIND) == len(kinds.ALL)
    for kind in kinds.ALL:
        assert kinds.BY_KIND[kind.api_version, kind.kind] is kind
        assert kind.head() == {"apiVersion": kind.api_version, "kind": kind.kind}
        found = kind.decode(b'{"metadata": {"name": "a", "labels": null}}')
        assert (type(found), found.metadata.name, found.metadata.labels) == (kind.struct, "a", {})
