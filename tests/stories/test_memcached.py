"""Caching services: real memcached with values on scratch, and with its items in a file that outlives the process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.driver.memcached_client import MemcachedClient
from tests import processes
from tests.clusters import Cluster
from tests.programs import needs
from tests.stories.objects import apply, sh, size_of

pytestmark = [
    pytest.mark.real,
    needs("memcached"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
EXTSTORE, PMEM = 11211, 11212
COUNT, VALUE = 60_000, b"v" * 2048
FEW = [f"few-{number}" for number in range(2000)]


@pytest.fixture(scope="module")
def cache(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    box = make_cluster("--pool", "image,size=4Gi,sparse=yes")
    box.up()
    yield box
    box.down("--purge")


def example(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def only_pod(box: Cluster, app: str) -> dict[str, Any]:
    (found,) = box.get("pods", "-l", f"app={app}")["items"]
    return dict(found)


def hits(port: int) -> int:
    with MemcachedClient(port) as client:
        return client.hits(FEW, VALUE)


def store(port: int) -> None:
    with MemcachedClient(port) as client:
        assert client.set(FEW, VALUE) == len(FEW)


def servers(argument: str) -> list[int]:
    """Processes of memcached with that argument."""
    return [pid for pid in processes.with_text(argument) if processes.arguments(pid)[:1] == ["memcached"]]


def test_a_cache_on_scratch_is_larger_than_its_memory(cache: Cluster) -> None:
    apply(cache, *example("memcached-extstore.yaml"))
    cache.kubectl("rollout", "status", "deployment/memcached-extstore", "--timeout=120s")
    pod = only_pod(cache, "memcached-extstore")["metadata"]["name"]
    keys = [f"key-{number}" for number in range(COUNT)]
    with MemcachedClient(EXTSTORE) as client:
        limit = int(client.stats()["limit_maxbytes"])

        def exceeds_memory() -> bool:
            """Store all; where values come faster than the disk takes them, memcached drops some, as any cache."""
            client.set(keys, VALUE)
            return client.hits(keys, VALUE) * len(VALUE) > limit

        cache.until("it holds more than its memory", exceeds_memory)
        stats = client.stats()
    assert int(stats["get_extstore"]) > 0
    assert limit == 64 << 20
    used = int(sh(cache, pod, "stat -c %s /data/ext"))
    assert 0 < used <= 900 << 20
    assert size_of(cache, pod, "/data") >= 900 << 20
    cache.kubectl("delete", "deployment", "memcached-extstore", "--timeout=120s")
    cache.until("its volume ends with it", lambda: not cache.get("pvc,pv")["items"])


def test_a_file_larger_than_the_volume_ends_no_server(cache: Cluster) -> None:
    """What extstore cannot write stays in memory or is dropped, as in any cache; the server goes on."""
    (deployment,) = example("memcached-extstore.yaml")
    text = json.dumps(deployment).replace("ext:900M", "ext:256M").replace('"1Gi"', '"64Mi"')
    apply(cache, json.loads(text))
    cache.kubectl("rollout", "status", "deployment/memcached-extstore", "--timeout=120s")
    keys = [f"key-{number}" for number in range(COUNT)]
    with MemcachedClient(EXTSTORE) as client:
        client.set(keys, VALUE)
        assert client.set(FEW, VALUE) == len(FEW)
        assert client.hits(FEW[-10:], VALUE) == 10
    restarts = only_pod(cache, "memcached-extstore")["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 0
    cache.kubectl("delete", "deployment", "memcached-extstore", "--timeout=120s")


def test_items_in_a_file_are_there_after_a_restart(cache: Cluster) -> None:
    storage_class, workload = example("memcached-pmem.yaml")
    del storage_class["parameters"]  # a file system on a disk stands for fsdax
    apply(cache, storage_class, workload)
    cache.kubectl("rollout", "status", "statefulset/memcached-pmem", "--timeout=120s")
    store(PMEM)
    assert hits(PMEM) == len(FEW)

    cache.kubectl("exec", "memcached-pmem-0", "--", "sh", "-c", "kill -USR1 $(cat /tmp/pid)")
    _restarted(cache, 1)
    assert hits(PMEM) == len(FEW), "the container has ended and its items are there"

    uid = only_pod(cache, "memcached-pmem")["metadata"]["uid"]
    cache.kubectl("delete", "pod", "memcached-pmem-0", "--timeout=120s")
    cache.until("another pod", lambda: _other(cache, uid))
    cache.kubectl("wait", "--for=condition=Ready", "pod/memcached-pmem-0", "--timeout=120s")
    assert hits(PMEM) == len(FEW), "another pod has the same claim"

    (pid,) = servers("/data/memory")
    os.kill(pid, signal.SIGKILL)
    _restarted(cache, 1)
    assert hits(PMEM) == 0, "a killed one begins empty"
    store(PMEM)
    assert hits(PMEM) == len(FEW)
    cache.kubectl("delete", "statefulset", "memcached-pmem", "--timeout=120s")
    cache.kubectl("delete", "pvc", "data-memcached-pmem-0", "--timeout=120s")


def _other(box: Cluster, uid: str) -> bool:
    found = box.get("pods", "-l", "app=memcached-pmem")["items"]
    return bool(found) and found[0]["metadata"]["uid"] != uid


def _restarted(box: Cluster, count: int) -> None:
    def ready() -> bool:
        status = only_pod(box, "memcached-pmem")["status"]["containerStatuses"][0]
        return bool(status["restartCount"] >= count and status["ready"])

    box.until("its container runs again", ready)
    deadline = time.monotonic() + 60
    while True:  # ready may be that of before
        try:
            MemcachedClient(PMEM).__exit__()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return
