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
            pod({"name": "v", "ephemeral": {}}), f"{_TEMPLATE}: Required value", id="ephemeral without a template"
        ),
        pytest.param(
            pod({"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": ONCE}}}),
            f"{_TEMPLATE}.metadata.name: Forbidden: cannot be set",
            id="template with a name",
        ),
        pytest.param(
            pod(ephemeral(accessModes=["ReadWriteAll"])),
            f'{_TEMPLATE}.spec.accessModes: Unsupported value: "ReadWriteAll": supported values: "ReadOnlyMany", '
            '"ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"',
            id="unknown access mode",
        ),
        pytest.param(
            pod(ephemeral(resources={"requests": {"storage": "0"}})),
            f'{_TEMPLATE}.spec.resources[storage]: Invalid value: "0": must be greater than zero',
            id="size 0",
        ),
        pytest.param(
            pod(ephemeral(resources={"requests": {"storage": "-1Gi"}})),
            f'{_TEMPLATE}.spec.resources[storage]: Invalid value: "-1Gi": must be greater than zero',
            id="negative size",
        ),
        pytest.param(
            pod(ephemeral(resources={})), f"{_TEMPLATE}.spec.resources[storage]: Required value", id="no size"
        ),
        pytest.param(
            pod(ephemeral() | {"emptyDir": {}}),
            f"{_V}.ephemeral: Forbidden: may not specify more than 1 volume type",
            id="two sources",
        ),
        pytest.param(
            pod(ephemeral("data"), {"name": "w", "persistentVolumeClaim": {"claimName": "p-data"}}),
            'spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: "p-data": must not reference a PVC that '
            "gets created for an ephemeral volume",
            id="claim of an own ephemeral volume",
        ),
        pytest.param(
            pod({"name": "v"}, {"name": "v"}), 'spec.volumes[1].name: Duplicate value: "v"', id="duplicate volume name"
        ),
        pytest.param(
            pod({"name": "v", "persistentVolumeClaim": {}}),
            f"{_V}.persistentVolumeClaim.claimName: Required value",
            id="claim without a name",
        ),
        pytest.param(pod({"name": "v", "csi": {}}), f"{_V}.csi.driver: Required value", id="inline without a driver"),
        pytest.param(pod({"name": "v", "nfs": {"server": "s"}}), f"{_V}.nfs.path: Required value", id="nfs, no path"),
        pytest.param(
            pod({"name": "v", "hostPath": {"path": "/a/../b"}}),
            f"{_V}.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            id="hostPath with backsteps",
        ),
        pytest.param(
            pod(container={"volumeMounts": [{"name": "x", "mountPath": "/x"}]}),
            'spec.containers[0].volumeMounts[0].name: Not found: "x"',
            id="mount of an unknown volume",
        ),
        pytest.param(
            pod(
                ephemeral(),
                container={"volumeMounts": [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]},
            ),
            'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique',
            id="duplicate mountPath",
        ),
        pytest.param(
            pod({"name": "v"}, container={"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}),
            'spec.containers[0].volumeDevices[0].name: Invalid value: "v": can only use volume source type of '
            "PersistentVolumeClaim or Ephemeral for block mode",
            id="block device of an emptyDir",
        ),
        pytest.param(
            pod(container={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
            id="request above limit",
        ),
        pytest.param(
            pod(container={"resources": {"requests": {"storage": "1Gi"}}}),
            'spec.containers[0].resources.requests[storage]: Invalid value: "storage": must be a standard resource for '
            "containers",
            id="storage is no resource of containers",
        ),
        pytest.param(
            pod(container={"ports": [{"containerPort": 1, "name": "UP--"}]}),
            'spec.containers[0].ports[0].name: Invalid value: "UP--": must not contain consecutive hyphens',
            id="port name",
        ),
        pytest.param(
            pod(container={"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
            'spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
            id="value from two places",
        ),
        pytest.param(
            pod(container={"livenessProbe": {}}),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            id="probe of nothing",
        ),
        pytest.param(pod(containers=[]), "spec.containers: Required value", id="no containers"),
        pytest.param(
            pod(restartPolicy="Sometimes"),
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
            id="unknown restart policy",
        ),
        pytest.param(
            pod(tolerations=[{"key": "k", "operator": "Is"}]),
            'spec.tolerations[0].operator: Unsupported value: "Is": supported values: "Equal", "Exists"',
            id="unknown toleration operator",
        ),
        pytest.param(
            pod(
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In"}]}]
                        }
                    }
                }
            ),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
            ".matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            id="node affinity without values",
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
    from tonnage.box.apiserver.schema import decode

    assert decode.normalise("core.v1.Pod", pod({"name": "v", "tape": {}})) == ['unknown field "spec.volumes[0].tape"']


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

    def test_the_refusal_tells_what_differs(self, faults: Faults) -> None:
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
def test_a_nul_is_refused_in_every_field(faults: Faults, wrong: Obj, path: str) -> None:
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
