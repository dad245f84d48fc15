"""Initial objects of a box: made once, and never changed afterwards."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CSI_DRIVERS, GROUP_CLASSES, NAMESPACES, SNAPSHOT_CLASSES, STORAGE_CLASSES
from tonnage.kubernetes.client.client import Client
from tonnage_box.bootstrap import class_of, ensure_all

AS_KUBECTL_WRITES_IT = (
    '{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"annotations":{},"name":'
    '"pmem-csi-sc-late-binding"},"provisioner":"pmem-csi.intel.com","reclaimPolicy":"Delete",'
    '"volumeBindingMode":"WaitForFirstConsumer"}\n'
)


async def test_a_box_begins_with_its_drivers_and_classes(kube: Client) -> None:
    await ensure_all(kube, pools=["scratch", "Big_one"], compat=["pmem-csi"])
    classes = {one.metadata.name: one for one in (await kube.list(STORAGE_CLASSES)).items}
    ours = {names.SCRATCH_CLASS, names.IMMEDIATE_CLASS, "tonnage-scratch", "tonnage-big-one"}
    assert classes.keys() == ours | {f"pmem-csi-sc{end}" for end in ("", "-ext4", "-xfs", "-late-binding")}
    assert classes[names.SCRATCH_CLASS].metadata.annotations == {names.DEFAULT_CLASS: "true"}
    assert classes[names.IMMEDIATE_CLASS].volume_binding_mode == names.IMMEDIATE
    assert classes["tonnage-big-one"].parameters == {"pool": "Big_one"}
    assert classes["pmem-csi-sc"].provisioner == names.PMEM_CSI
    assert classes["pmem-csi-sc-late-binding"].metadata.annotations == {names.LAST_APPLIED: AS_KUBECTL_WRITES_IT}
    drivers = (await kube.list(CSI_DRIVERS)).items
    assert {one.metadata.name for one in drivers} == {names.DRIVER, names.PMEM_CSI}
    assert not any(one.spec.attach_required for one in drivers)
    await kube.get(NAMESPACES, names.SYSTEM_NAMESPACE)
    (snapshots,) = (await kube.list(SNAPSHOT_CLASSES)).items
    assert (snapshots.metadata.name, snapshots.driver, snapshots.deletion_policy) == ("tonnage", names.DRIVER, "Delete")
    assert snapshots.metadata.annotations == {"snapshot.storage.kubernetes.io/is-default-class": "true"}
    assert snapshots.metadata.labels == {"velero.io/csi-volumesnapshot-class": "true"}
    (groups,) = (await kube.list(GROUP_CLASSES)).items
    assert (groups.metadata.name, groups.driver, groups.deletion_policy) == ("tonnage", names.DRIVER, "Delete")
    assert groups.metadata.annotations == {"groupsnapshot.storage.kubernetes.io/is-default-class": "true"}


async def test_what_a_user_changed_stays(kube: Client) -> None:
    await ensure_all(kube, pools=["scratch"], compat=[])
    changed = await kube.patch(
        STORAGE_CLASSES, names.SCRATCH_CLASS, {"metadata": {"annotations": {names.DEFAULT_CLASS: "false"}}}
    )
    await ensure_all(kube, pools=["scratch"], compat=[])
    assert await kube.get(STORAGE_CLASSES, names.SCRATCH_CLASS) == changed


@pytest.mark.parametrize(("pool", "name"), [("scratch", "tonnage-scratch"), ("A_b", "tonnage-a-b")])
def test_the_class_of_a_pool(pool: str, name: str) -> None:
    assert class_of(pool) == name
