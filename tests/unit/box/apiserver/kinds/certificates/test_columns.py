"""What kubectl get prints of requests for certificates."""

from __future__ import annotations

import pytest
from tests.unit.box.apiserver.kinds.apps.test_columns import cells


@pytest.mark.parametrize(
    ("types", "certificate", "shown"),
    [
        ((), "", "Pending"),
        (("Approved",), "eA==", "Approved,Issued"),
        (("Approved", "Failed"), "", "Approved,Failed"),
        (("Denied",), "", "Denied"),
    ],
)
def test_request(types: tuple[str, ...], certificate: str, shown: str) -> None:
    status = {"conditions": [{"type": word} for word in types]} | ({"certificate": certificate} if certificate else {})
    found = cells("certificates.k8s.io/certificatesigningrequests", spec={"expirationSeconds": 86400}, status=status)
    assert (found["Condition"], found["RequestedDuration"]) == (shown, "24h")


def test_request_of_a_pod() -> None:
    key = "certificates.k8s.io/podcertificaterequests"
    assert cells(key)["State"] == "Pending"
    assert cells(key, status={"conditions": [{"type": "Issued"}]})["State"] == "Issued"
