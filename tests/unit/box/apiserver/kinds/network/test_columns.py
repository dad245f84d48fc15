"""What kubectl get prints of services, routes and autoscalers."""

from __future__ import annotations

from typing import Any

from tests.unit.box.apiserver.kinds.apps.test_columns import cells

Obj = dict[str, Any]
INGRESSES, CLASSES = "networking.k8s.io/ingresses", "networking.k8s.io/ingressclasses"


def test_ingress() -> None:
    spec: Obj = {"ingressClassName": "c", "rules": [{"host": h} for h in "abcd"], "tls": [{}]}
    found = cells(INGRESSES, spec=spec)
    assert (found["Hosts"], found["Ports"], found["Class"]) == ("a,b,c + 1 more...", "80, 443", "c")
    assert cells(INGRESSES, spec={})["Hosts"] == "*"
    spec = {"controller": "c", "parameters": {"kind": "K", "apiGroup": "g", "name": "n"}}
    assert cells(CLASSES, spec=spec)["Parameters"] == "K.g/n"
