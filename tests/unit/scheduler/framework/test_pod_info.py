"""What a pod asks of its node, against the rule as Kubernetes writes it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.pods import FlexVolumeSource, Pod, PodSpec, Volume
from tonnage.scheduler.framework.pod_info import compile_demand, inline_uses

RESOURCES = ("cpu", "memory", "example.com/a")
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 5), max_size=3)
containers = st.lists(amounts, min_size=1, max_size=4)
first = st.lists(st.tuples(amounts, st.booleans()), max_size=5)


def container(asked: dict[str, int], *, sidecar: bool = False) -> dict[str, Any]:
    requests = {resource: str(amount) for resource, amount in asked.items()}
    return {"name": "c", "resources": {"requests": requests}} | ({"restartPolicy": "Always"} if sidecar else {})


@given(containers, first)
def test_containers_together_or_the_largest_moment_before_them(
    together: list[dict[str, int]], before: list[tuple[dict[str, int], bool]]
) -> None:
    init = [container(asked, sidecar=sidecar) for asked, sidecar in before]
    spec = {"containers": [container(asked) for asked in together], "initContainers": init}
    demand = dict(compile_demand(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)).requests)
    for resource in RESOURCES:
        running, peak = sum(asked.get(resource, 0) for asked in together), 0
        sidecars = 0
        for asked, sidecar in before:
            peak = max(peak, sidecars + asked.get(resource, 0))
            sidecars += asked.get(resource, 0) if sidecar else 0
        want = max(running + sidecars, peak) * (1000 if resource == "cpu" else 1)
        assert demand.get(resource, 0) == want


def test_inline_flexvolumes_of_ours_count_as_volumes_of_our_driver() -> None:
    def flex(name: str, driver: str, **options: str) -> Volume:
        return Volume(name=name, flex_volume=FlexVolumeSource(driver=driver, options=options))

    volumes = [
        flex("a", "tonnage.dev/local", size="1Gi", pool="fast"),
        flex("b", "volumes.k8s.elastic.co/elastic-local", sizeBytes="1024"),
        flex("c", "tonnage.dev/local"),
        flex("d", "example.com/other", size="1Gi"),
        flex("e", "tonnage.dev/local", size="much"),
    ]
    found = inline_uses(Pod(spec=PodSpec(volumes=volumes)))
    assert [(use.driver, use.pool, use.size) for use in found] == [
        (names.DRIVER, "fast", 1 << 30),
        (names.DRIVER, "", 1024),
    ]
