"""Labels of nodes that Kubernetes has given up."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.node_labels import of_term, of_terms


def test_terms() -> None:
    old = {"matchExpressions": [{"key": "zone"}, {"key": "beta.kubernetes.io/arch", "values": ["a b"]}]}
    (warning,) = of_terms([{}, old], "terms")
    assert warning.startswith("terms[1].matchExpressions[1].key: beta.kubernetes.io/arch is deprecated since v1.14;")
    assert ["values[0]: a b is invalid" in text for text in of_term(old, "t", values=True)] == [False, True]
