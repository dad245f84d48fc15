"""docs/conformance.md: the versions of the judges are those that their modules pin."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.peer import peer
from tests.integration.third_party.programs import sidecar_versions

PAGE = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()


def test_the_versions_of_the_sidecars() -> None:
    shown = dict(re.findall(r"^\| (csi-\S+) \| (v\S+) \|", PAGE, re.MULTILINE))
    assert shown == sidecar_versions()
    assert len(shown) == 3


def test_the_version_of_the_driver() -> None:
    required = (peer.describe(peer.HOSTPATH).source / "go.mod").read_text()
    (version,) = re.findall(r"kubernetes-csi/csi-driver-host-path (v\S+)", required)
    assert set(re.findall(r"csi-driver-host-path`? (v[\d.]+)", PAGE)) == {version}
