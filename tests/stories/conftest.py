"""The box that all stories share: they take names of their own in it, and leave nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.clusters import Cluster
from tests.programs import found
from tests.stories.objects import FAST, apply, storage_class

from tonnage.kubernetes.api import names


@pytest.fixture(scope="session")
def box(make_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with two pools each, and a folder that volumes may begin with."""
    models = tmp_path_factory.mktemp("given").resolve() / "models"
    models.mkdir()
    (models / "file").write_text("from a folder\n")
    pools = ("image,name=scratch,size=4Gi,sparse=yes", "image,name=fast,size=4Gi,sparse=yes")
    given = [word for pool in pools for word in ("--pool", pool)]
    cluster = make_cluster("--nodes", "2", *given, "--source", str(models))
    cluster.up()
    apply(cluster, storage_class(FAST, **{"pool": "fast", names.CSI_FSTYPE: "xfs"}))
    yield cluster
    cluster.down("--purge")


@pytest.fixture(scope="session")
def go_program() -> Callable[[str], Path]:
    """Finds a program in Go; skips the test where it is not built."""
    return found
