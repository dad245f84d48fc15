"""What `tonnage driver --check` says of pools of persistent memory."""

from __future__ import annotations

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.host import ndctl
from tonnage.host.ndctl import Region
from tonnage.node.config import preflight
from tonnage.storage.pools.config import parse

GI = 1024**3


def region(name: str, *, labelled: bool = True) -> Region:
    return Region(name, 4 * GI, 7, 16 * 1024**2, GI, GI, labelled=labelled, readonly=False, slots=1019)


def test_what_a_check_of_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndctl, "regions", lambda: [region("region0"), region("region1", labelled=False)])
    monkeypatch.setattr("tonnage.node.config.preflight.lacking", lambda _pool: ())
    assert preflight.look(parse("pmem,mode=sector")) == "pmem in region0 (1Gi of 4Gi free), mode sector"
    with pytest.raises(UnavailableError, match="init-labels"):
        preflight.look(parse("pmem:region1"))
