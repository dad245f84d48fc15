"""Variables and command lines, with $(VAR) expanded."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.pods import Container, EnvVar, Pod, VolumeMount
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.containers import env
from tonnage_box.kubelet.containers.env import Environment
from tonnage_box.kubelet.volumes.sources import NodeFields, ObjectSources


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)$(B)", "x12"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NO)", "$(NO)"),
        ("$A $ $(", "$A $ $("),
        ("", ""),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert env.expand(text, {"A": "1", "B": "2"}) == expected


def test_arguments_need_a_command() -> None:
    assert env.arguments(Container(command=["a", "$(X)"], args=["b"]), {"X": "y"}) == ["a", "y", "b"]
    with pytest.raises(InvalidError, match="has no command"):
        env.arguments(Container(name="c"), {})


def test_arguments_alone_are_a_command_if_the_machine_has_the_program() -> None:
    assert env.arguments(Container(args=["$(X)", "-c", "b"]), {"X": "sh"}) == ["sh", "-c", "b"]
    for args in (["--verbose"], ["surely-no-program"], [""], ["sh"]):
        with pytest.raises(InvalidError, match="has no command"):
            env.arguments(Container(name="c", args=args), {"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("program", "path", "mounted", "is_missing"),
    [
        ("surely-no-program", "/usr/bin:/bin", "/data", True),
        ("sh", "/usr/bin:/bin", "/data", False),
        ("./surely-no-program", "/usr/bin", "/data", False),
        ("surely-no-program", "/usr/bin:/data/bin", "/data", False),
        ("surely-no-program", "/usr/bin", "/usr/bin", False),
    ],
)
def test_a_program_that_the_machine_does_not_have(program: str, path: str, mounted: str, is_missing: bool) -> None:
    container = Container(image="nginx", volume_mounts=[VolumeMount(name="v", mount_path=mounted)])
    why = env.why_not_found(container, program, path)
    assert ("executable file not found in $PATH" in why and "'nginx'" in why) == is_missing
    assert bool(why) == is_missing


async def test_containers_know_where_the_api_server_is_and_may_say_otherwise(kube: Client) -> None:
    found = Environment(ObjectSources(kube, NodeFields("n", "127.0.0.1", {}, ("127.0.0.1", 6443))))
    variables = [EnvVar(name="URL", value="$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)")]
    values = await found.of(Pod(), Container(env=variables))
    assert values["URL"] == "127.0.0.1:6443"
    assert values["KUBERNETES_PORT"] == "tcp://127.0.0.1:6443"
    own = await found.of(Pod(), Container(env=[EnvVar(name="KUBERNETES_SERVICE_HOST", value="other")]))
    assert own["KUBERNETES_SERVICE_HOST"] == "other"
    none = Environment(ObjectSources(kube, NodeFields("n", "127.0.0.1", {})))
    assert await none.of(Pod(), Container()) == {}
