"""Claims that a real populator fills: the example of lib-volume-populator, over our class and real kubelets.

Its controller runs beside the cluster; its pods run in it and write to the volume of a claim of their own (the "prime"),
whose volume the library then gives to the user's claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.processes import Processes
from deploy.image import archive
from deploy.image.archive import Entry
from tests.e2e import pods
from tests.e2e.machines import Machines
from tests.e2e.processes import events, until
from tests.integration.third_party.programs import POPULATOR
from tests.programs import found

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
IMAGE, SPACE, GROUP = "test.local/hello-populator:1", "populators", "hello.example.com"
TEXT = "made by a populator"
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "populated"},
    "provisioner": names.DRIVER,
    "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
}
HELLO = {
    "apiVersion": f"{GROUP}/v1alpha1",
    "kind": "Hello",
    "metadata": {"name": "text", "namespace": "default"},
    "spec": {"fileName": "hello.txt", "fileContents": TEXT},
}


def _definition() -> dict[str, Any]:
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": kept}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"hellos.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": "Hello", "listKind": "HelloList", "plural": "hellos", "singular": "hello"},
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture(scope="module")
def populator(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The machines, with the populator's controller at work and its image on both nodes."""
    program, folder, plane = found(POPULATOR), tmp_path_factory.mktemp("populator"), machines.plane
    image = folder / "image.tar"
    tree = {"hello-populator": Entry(0o755, program.read_bytes()), "tmp": Entry(0o1777)}
    archive.write(image, IMAGE, [archive.layer(tree, 0)], config={"Entrypoint": ["/hello-populator"]}, time=0)
    for name in machines.names:
        machines.node(name).ctr("images", "import", str(image))
    plane.apply(_definition(), CLASS, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    plane.kubectl("wait", "--for=condition=Established", f"crd/hellos.{GROUP}", "--timeout=60s")
    plane.apply(HELLO)
    processes = Processes(folder)
    flags = ("--mode=controller", f"--image-name={IMAGE}", f"--namespace={SPACE}", f"--kubeconfig={plane.kubeconfig}")
    processes.start("populator", [program, *flags])
    try:
        yield machines
    finally:
        processes.end("populator")
        image.unlink()
        plane.kubectl("delete", f"crd/hellos.{GROUP}", f"namespace/{SPACE}", "storageclass/populated")


def _claim(machines: Machines, name: str, size: str, node: str = "") -> None:
    """A claim that is to be filled. node: where it is sent before it has a pod."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "populated",
        "resources": {"requests": {"storage": size}},
        "dataSourceRef": {"apiGroup": GROUP, "kind": "Hello", "name": "text"},
    }
    notes = {names.SELECTED_NODE: node} if node else {}
    metadata = {"name": name, "namespace": "default", "annotations": notes}
    machines.plane.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})


def test_a_pod_starts_with_what_the_populator_wrote(populator: Machines) -> None:
    with pods.removed(populator, "pod/reads", "pvc/filled"):
        _claim(populator, "filled", "512Mi")
        populator.plane.apply(pods.pod("reads", "filled"))
        node = pods.wait_ready(populator, "reads")
        assert populator.shell("reads", "cat /data/hello.txt").strip() == TEXT
        volume = populator.plane.get("pv", populator.plane.get("pvc", "filled")["spec"]["volumeName"])
        assert volume["spec"]["claimRef"]["name"] == "filled"
        assert node in str(volume["spec"]["nodeAffinity"])
        until(populator.plane, "the prime is gone", lambda: not populator.plane.get("-n", SPACE, "pvc")["items"])


def test_a_claim_leaves_a_node_where_its_prime_does_not_fit(populator: Machines) -> None:
    """Only a race, or a hand, sends it there: the scheduler knows the capacity. So it is sent by hand."""
    plane = populator.plane
    with pods.removed(populator, "pod/goes-on", "pvc/moved", "pod/fills"):
        populator.start("fills", "4Gi", node="node-1")
        pods.wait_ready(populator, "fills")
        _claim(populator, "moved", "3Gi", node="node-1")
        plane.apply(pods.pod("goes-on", "moved"))
        until(plane, "the Event says what to do", lambda: bool(_advice(populator)))
        plane.kubectl(*_advice(populator).split()[1:])
        assert pods.wait_ready(populator, "goes-on") == "node-2"
        assert populator.shell("goes-on", "cat /data/hello.txt").strip() == TEXT


def _advice(populator: Machines) -> str:
    """The command of the Event on a claim that got another node than its prime."""
    found = [text for reason, text in events(populator.plane, "default", "moved") if reason == "PopulatorRescheduled"]
    return found[0][found[0].index("kubectl -n") :] if found else ""
