from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
ONCE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def pod(*volumes: Obj, name: str = "p", **spec: Any) -> Obj:
    container = {"name": "c", "image": "i"} | spec.pop("container", {})
    return {"metadata": {"name": name}, "spec": {"containers": [container], "volumes": list(volumes)} | spec}


def ephemeral(name: str = "v", **changes: Any) -> Obj:
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": ONCE | changes}}}


def test_a_good_pod_passes(faults: Faults) -> None:
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    assert faults("pods", pod(ephemeral(), container=mounts)) == []


def test_the_same_claim_in_two_volumes_is_kubernetes_way_and_passes(faults: Faults) -> None:
    source = {"persistentVolumeClaim": {"claimName": "mine"}}
    assert faults("pods", pod({"name": "a"} | source, {"name": "b"} | source)) == []


_V = "spec.volumes[0]"
_TEMPLATE = f"{_V}.ephemeral.volumeClaimTemplate"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(
            pod(restartPolicy="Sometimes"),
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
            id="unknown restart policy",
        ),
        pytest.param(
            pod(nodeName="n", schedulingGates=[{"name": "wait"}]),
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
            id="gated and placed",
        ),
    ],
)
def test_a_wrong_pod_is_told_what_is_wrong(faults: Faults, wrong: Obj, said: str) -> None:
    assert said in faults("pods", wrong)


def test_the_claim_made_for_an_ephemeral_volume_must_have_a_valid_name(faults: Faults) -> None:
    name = "p" * 250

    found = faults("pods", pod(ephemeral("data"), name=name))

    assert found == [
        f'spec.volumes[0].name: Invalid value: "data": PVC name "{name}-data": must be no more than 253 characters'
    ]


def test_a_source_that_kubernetes_does_not_have_is_an_unknown_field() -> None:
    from tonnage_box.apiserver.schema import decode

    assert decode.normalize("core.v1.Pod", pod({"name": "v", "tape": {}})) == ['unknown field "spec.volumes[0].tape"']


class TestUpdate:
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda s: s["containers"][0].update(image="other"), id="image"),
            pytest.param(lambda s: s.update(activeDeadlineSeconds=5), id="deadline"),
            pytest.param(lambda s: s["tolerations"].append({"key": "z", "operator": "Exists"}), id="toleration added"),
            pytest.param(lambda s: s["tolerations"][0].update(tolerationSeconds=3), id="toleration's seconds"),
            pytest.param(lambda s: s.update(schedulingGates=[]), id="gates removed"),
            pytest.param(lambda s: s.update(nodeSelector={"a": "b", "c": "d"}), id="selector, while gated"),
        ],
    )
    def test_may(self, faults: Faults, change: Callable[[Obj], None]) -> None:
        old, new = self.old(), self.old()
        change(new["spec"])
        assert faults("pods", new, old) == []

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            pytest.param(
                lambda s: s["volumes"].append({"name": "w"}),
                "spec: Forbidden: pod updates may not change",
                id="volumes",
            ),
            pytest.param(
                lambda s: s["containers"].append({"name": "d", "image": "i"}),
                "spec.containers: Forbidden: pod updates may not add or remove containers",
                id="containers",
            ),
            pytest.param(
                lambda s: s.update(tolerations=[]),
                "spec.tolerations: Forbidden: existing toleration can not be modified",
                id="toleration removed",
            ),
            pytest.param(
                lambda s: s["schedulingGates"].append({"name": "more"}),
                "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'more'",
                id="gate added",
            ),
            pytest.param(
                lambda s: s.update(nodeSelector={"a": "c"}),
                "spec.nodeSelector: Invalid value",
                id="selector changed while gated",
            ),
        ],
    )
    def test_may_not(self, faults: Faults, change: Callable[[Obj], None], said: str) -> None:
        old, new = self.old(), self.old()
        change(new["spec"])
        assert [f for f in faults("pods", new, old) if f.startswith(said)]

    def test_the_rejection_tells_what_differs(self, faults: Faults) -> None:
        old, new = self.old(), self.old()
        new["spec"]["terminationGracePeriodSeconds"] = 5
        (fault,) = faults("pods", new, old)
        assert fault.endswith("\n  terminationGracePeriodSeconds: 30 -> 5")

    @staticmethod
    def old() -> Obj:
        toleration = {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}
        gated: Obj = {"schedulingGates": [{"name": "wait"}], "nodeSelector": {"a": "b"}}
        return copy.deepcopy(pod(ephemeral(), tolerations=[toleration], **gated))


def test_a_status_is_not_held_to_the_rules_of_the_spec(faults: Faults) -> None:
    assert faults("pods", pod(containers=[]), pod(containers=[]), "status") == []


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (pod(container={"env": [{"name": "A", "value": "x\0--bind"}]}), "spec.containers[0].env[0].value"),
        (pod(container={"command": ["sh", "a\0"]}), "spec.containers[0].command[1]"),
        (pod(container={"workingDir": "/a\0"}), "spec.containers[0].workingDir"),
        (pod(container={"terminationMessagePath": "/a\0"}), "spec.containers[0].terminationMessagePath"),
        (pod(nodeSelector={"a": "b\0"}), "spec.nodeSelector.a"),
        (pod({"name": "v", "csi": {"driver": "d", "volumeAttributes": {"a\0": "b"}}}), "spec.volumes[0].csi"),
    ],
)
def test_a_nul_is_rejected_in_every_field(faults: Faults, wrong: Obj, path: str) -> None:
    found = [fault for fault in faults("pods", wrong) if fault.endswith(": must not contain NUL characters")]
    assert len(found) == 1
    assert found[0].startswith(f"{path}")
    labels = {"a": "a"}
    template = {"metadata": {"labels": labels}, "spec": wrong["spec"]}
    owner = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    said = [fault for fault in faults("apps/daemonsets", owner) if "NUL" in fault]
    assert said == [f"spec.template.{fault}" for fault in found]


def test_a_pod_with_a_nul_of_an_earlier_version_can_still_lose_its_finalizer(faults: Faults) -> None:
    stored = pod(container={"workingDir": "/a\0"})
    assert faults("pods", copy.deepcopy(stored), stored) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ports": [{"containerPort": 80}]}, "ports: Forbidden: cannot be set for an Ephemeral Container"),
        ({"resources": {"limits": {"cpu": "1"}}}, "resources: Forbidden: cannot be set for an Ephemeral Container"),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "lifecycle: Forbidden: cannot be set for"),
        ({"livenessProbe": {"exec": {"command": ["x"]}}}, "livenessProbe: Forbidden: cannot be set for"),
        ({"name": "c"}, 'name: Duplicate value: "c"'),
        ({"targetContainerName": "x"}, 'targetContainerName: Not found: "x"'),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}]},
            "volumeMounts[0].subPath: Forbidden: cannot be set for an Ephemeral Container",
        ),
    ],
)
def test_what_an_ephemeral_container_may_not_have(faults: Faults, wrong: Obj, said: str) -> None:
    old = pod({"name": "v", "emptyDir": {}})
    old["metadata"]["uid"] = "u"
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [{"name": "look", "image": "i"} | wrong]
    (found,) = faults("pods", new, old, "ephemeralcontainers")
    assert found.startswith(f"spec.ephemeralContainers[0].{said}")


def test_ephemeral_containers_are_added_to_a_pod_that_is_there(faults: Faults) -> None:
    made = pod(ephemeralContainers=[{"name": "look", "image": "i"}])
    assert faults("pods", made) == ["spec.ephemeralContainers: Forbidden: cannot be set on create"]
