from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.storage import defaults

Obj = dict[str, Any]


def test_a_driver_with_nothing_said() -> None:
    driver: Obj = {}
    defaults.csi_driver(driver)
    assert driver["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "storageCapacity": False,
        "requiresRepublish": False,
        "seLinuxMount": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "volumeLifecycleModes": ["Persistent"],
    }
