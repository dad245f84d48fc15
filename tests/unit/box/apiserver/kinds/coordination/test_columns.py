"""What kubectl get prints of leases."""

from __future__ import annotations

from tests.unit.box.apiserver.kinds.printed import cells


def test_a_lease_shows_its_holder() -> None:
    found = cells("coordination.k8s.io/leases", {"spec": {"holderIdentity": "me"}})
    assert found == {"Name": "x", "Holder": "me", "Age": "5m"}
