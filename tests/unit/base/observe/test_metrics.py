"""The list of metrics: under the names that tools for other provisioners look for, and all of them documented."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from tonnage.base.observe import metrics
from tonnage.base.observe.sums import Sums

DOCS = Path(__file__).parents[4] / "docs"
PAGE = DOCS / "reference" / "metrics.md"
UPSTREAM = {
    # sig-storage-lib-external-provisioner v13, controller/metrics/metrics.go, subsystem "controller"
    "controller_persistentvolumeclaim_provision_total": ("counter", ("class", "source")),
    "controller_persistentvolumeclaim_provision_failed_total": ("counter", ("class", "source")),
    "controller_persistentvolumeclaim_provision_duration_seconds": ("histogram", ("class", "source")),
    "controller_persistentvolume_delete_total": ("counter", ("class",)),
    "controller_persistentvolume_delete_failed_total": ("counter", ("class",)),
    "controller_persistentvolume_delete_duration_seconds": ("histogram", ("class",)),
    # csi-lib-utils v0.25, metrics/metrics.go, subsystems "csi_sidecar" and "csi_plugin"
    "csi_sidecar_operations_seconds": ("histogram", ("driver_name", "method_name", "grpc_status_code")),
    "csi_plugin_operations_seconds": ("histogram", ("driver_name", "method_name", "grpc_status_code")),
}
UPSTREAM_BOUNDS = {
    "controller_": {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
    "csi_": {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
}


def exported() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> type and labels, of every metric that there is."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for collector in list(metrics.REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            name = collector._name + ("_total" if collector._type == "counter" else "")
            found[name] = str(collector._type), tuple(collector._labelnames)
        else:
            assert isinstance(collector, Sums)
            found[collector.name] = "gauge", collector._labels
    return found


def test_names_that_tools_expect() -> None:
    assert {name: about for name, about in exported().items() if name in UPSTREAM} == UPSTREAM


def test_upstreams_bounds_are_among_ours() -> None:
    for collector in list(metrics.REGISTRY._collector_to_names):
        for prefix, bounds in UPSTREAM_BOUNDS.items():
            name = getattr(collector, "_name", "")
            if getattr(collector, "_type", "") == "histogram" and name.startswith(prefix):
                assert bounds <= set(collector._kwargs["buckets"]), name  # type: ignore[attr-defined]


def test_the_documentation_lists_them_all() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([`\w, ]*) \| .+ \|$", PAGE.read_text(), re.M)
    listed = {name: (kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert listed == exported()
    assert len(rows) == len(listed)


def test_pages_name_labels_that_metrics_have() -> None:
    """As `tonnage_pool_up{pool="scratch"}` or `tonnage_pool_up{pool}`."""
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = re.findall(r"\b(tonnage_\w+)\{([^}]+)\}", pages)
    assert named
    for name, labels in named:
        words = {label.partition("=")[0].strip() for label in labels.split(",")}
        assert words <= set(exported()[name][1]), name


class _Thing:
    def __init__(self, count: int) -> None:
        self.count = count


def test_sums_are_read_when_somebody_looks() -> None:
    registry = CollectorRegistry()
    sums = Sums("things", "Things.", ("label", "what"), registry=registry)
    first, second, other = _Thing(1), _Thing(2), _Thing(5)
    for thing, label in ((first, "a"), (second, "a"), (other, "b")):
        sums.count(thing, label, lambda found: {"n": found.count})
    assert b'things{label="a",what="n"} 3.0\nthings{label="b",what="n"} 5.0' in generate_latest(registry)
    second.count = 7
    del thing, other
    assert b'things{label="a",what="n"} 8.0' in generate_latest(registry)
    assert b'label="b"' not in generate_latest(registry)
