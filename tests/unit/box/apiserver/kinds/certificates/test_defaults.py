"""Defaults of requests for certificates."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.certificates import defaults


def test_a_pods_certificate_lasts_a_day_at_most() -> None:
    said: dict[str, Any] = {"spec": {"maxExpirationSeconds": 3600}}
    left_out: dict[str, Any] = {}
    for obj in (said, left_out):
        defaults.pod_certificate_request(obj)
    assert (said["spec"], left_out["spec"]) == ({"maxExpirationSeconds": 3600}, {"maxExpirationSeconds": 86400})
