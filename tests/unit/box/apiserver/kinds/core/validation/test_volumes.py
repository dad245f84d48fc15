"""A pod's volumes, and where its containers mount them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.core.validation.test_pod import ONCE, ephemeral, pod

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
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
    ],
)
def test_a_wrong_pod_is_told_what_is_wrong(faults: Faults, wrong: Obj, said: str) -> None:
    assert said in faults("pods", wrong)


def projected(**source: Obj) -> Obj:
    return pod({"name": "v", "projected": {"sources": [source]}})


_CERTIFICATE = {"signerName": "example.com/s", "keyType": "ECDSAP256", "keyPath": "tls.key"}
_BUNDLE = {"signerName": "example.com/s", "labelSelector": {}, "path": "ca.crt"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"signerName": "s"}, ".signerName: Invalid value"),
        ({"keyType": "DSA"}, '.keyType: Unsupported value: "DSA"'),
        ({"maxExpirationSeconds": 3599}, ".maxExpirationSeconds: Invalid value"),
        ({"maxExpirationSeconds": 91 * 86400 + 1}, ".maxExpirationSeconds: Invalid value"),
        ({"keyPath": ""}, ": Required value: specify at least one of credentialBundlePath"),
        ({"keyPath": "../x"}, ".keyPath: Invalid value"),
        ({"certificateChainPath": "tls.key"}, "paths must be unique"),
    ],
)
def test_a_wrong_pod_certificate(faults: Faults, changed: Obj, said: str) -> None:
    assert faults("pods", projected(podCertificate=_CERTIFICATE | {"userAnnotations": {"a.b/c": "d"}})) == []
    found = faults("pods", projected(podCertificate=_CERTIFICATE | changed))
    assert [line for line in found if said in line and line.startswith(f"{_V}.projected.sources[0].podCertificate")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"path": ""}, ".path: Required value"),
        ({"path": "/x"}, ".path: Invalid value"),
        ({"name": "n"}, "only one of name and signerName may be used"),
        ({"signerName": ""}, ": Required value: either name or signerName must be specified"),
        ({"signerName": "s"}, ".signerName: Invalid value"),
        ({"signerName": "", "name": "n"}, ".labelSelector: Invalid value"),
    ],
)
def test_a_wrong_cluster_trust_bundle(faults: Faults, changed: Obj, said: str) -> None:
    assert faults("pods", projected(clusterTrustBundle=_BUNDLE)) == []
    assert faults("pods", projected(clusterTrustBundle={"name": "n", "path": "ca.crt", "optional": True})) == []
    found = faults("pods", projected(clusterTrustBundle=_BUNDLE | changed))
    where = f"{_V}.projected.sources[0].clusterTrustBundle"
    assert [line for line in found if said in line and line.startswith(where)]


def test_a_mount_and_a_device_have_no_volume_in_common(faults: Faults) -> None:
    both = {
        "volumeMounts": [{"name": "v", "mountPath": "/x"}],
        "volumeDevices": [{"name": "v", "devicePath": "/x"}],
    }
    assert faults("pods", pod(ephemeral(), container=both)) == [
        'spec.containers[0].volumeMounts[0].name: Invalid value: "v": must not already exist in volumeDevices',
        'spec.containers[0].volumeMounts[0].mountPath: Invalid value: "/x": must not already exist as a path in '
        "volumeDevices",
        'spec.containers[0].volumeDevices[0].name: Invalid value: "v": must not already exist in volumeMounts',
        'spec.containers[0].volumeDevices[0].devicePath: Invalid value: "/x": must not already exist as a path in '
        "volumeMounts",
    ]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param("/a", "must be a relative path", id="absolute"),
        pytest.param("a/../b", "must not contain '..'", id="upwards"),
    ],
)
def test_a_sub_path_stays_inside(faults: Faults, path: str, said: str) -> None:
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data", "subPath": path}]}
    found = faults("pods", pod(ephemeral(), container=mounts))
    assert found == [f'spec.containers[0].volumeMounts.subPath: Invalid value: "{path}": {said}']
