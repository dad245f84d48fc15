"""The rows of a new kind, for a pytest of its own: `pytest -p tests.unit.storage.pools.shelf.plugin`."""

from __future__ import annotations

from typing import cast

from tests.conformance.benches import BENCHES, BenchKind

from tonnage.storage.pools import kinds

cast("dict[str, str]", kinds.MODULES)["shelf"] = "tests.unit.storage.pools.shelf.kind"
BENCHES["shelf"] = BenchKind(lambda _folder: "shelf,name=p,size=30716Mi")
