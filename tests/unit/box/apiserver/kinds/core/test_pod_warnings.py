"""Warnings about pods: where they point, and that nothing is said without a reason."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.kinds.core.pod_warnings import of_pod

Obj = dict[str, Any]


def container(**more: Any) -> Obj:
    return {"name": "c", "image": "i", **more}


def port(number: int, **more: Any) -> Obj:
    return {"containerPort": number, "protocol": "TCP", **more}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodeSelector": {"beta.kubernetes.io/os": "linux"}}, ["nodeSelector[beta.kubernetes.io/os]: deprecated"]),
        ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, ['imagePullSecrets[1].name: duplicate name "a"']),
        ({"containers": [container(env=[{"name": "A"}, {"name": "A"}])]}, ["containers[0].env[1]: hides previous"]),
        (
            {"containers": [container(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}])]},
            [],
        ),
        (
            {"containers": [container(ports=[port(80, name="web")]), container(ports=[port(81, name="web")])]},
            ['containers[1].ports[0]: duplicate port name "web" with T.containers[0].ports[0]'],
        ),
        (
            {"containers": [container(ports=[port(80), port(80)]), container(ports=[port(80, hostPort=1)])]},
            [
                "containers[0].ports[1]: duplicate port definition with T.containers[0].ports[0]",
                "containers[1].ports[0]: overlapping port definition with T.containers[0].ports[0]",
                "containers[1].ports[0]: overlapping port definition with T.containers[0].ports[1]",
            ],
        ),
        ({"hostAliases": [{"ip": "2001:DB8::"}]}, ['hostAliases[0].ip: IPv6 address "2001:DB8::" should be']),
        ({"hostAliases": [{"ip": "none"}], "volumes": None, "affinity": None}, []),
        ({"overhead": {"memory": "100m"}}, ['overhead[memory]: fractional byte value "100m"']),
    ],
)
def test_paths_are_those_of_the_template(spec: Obj, said: list[str]) -> None:
    found = of_pod({"spec": spec}, "spec.template.")
    path = "spec.template.spec"
    assert len(found) == len(said)
    for warning, wanted in zip(found, said, strict=True):
        assert warning.startswith(f"{path}.{wanted.replace('T.', f'{path}.')}"), warning


def test_nothing_is_said_about_what_is_fine() -> None:
    assert of_pod({"metadata": {}, "spec": {"containers": [container()]}}, "") == []
