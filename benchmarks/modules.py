"""The benchmarks by name. Results are saved, and shown in pages, under these."""

from __future__ import annotations

MODULES = {
    "apiserver": "apiserver.load",
    "requests": "apiserver.requests",
    "start": "box.start",
    "burst": "box.burst",
    "jobs": "box.jobs",
    "idle": "box.idle",
    "exec": "box.remote_commands",
    "driver": "driver.life",
    "lvm": "driver.lvm",
    "memcached": "driver.memcached",
    "undelete": "driver.undelete",
    "writes": "data_services.writes",
    "grow": "data_services.grow",
    "snapshot": "data_services.snapshot",
    "freeze": "data_services.freeze",
    "many": "data_services.many",
    "guest": "data_services.guest",
    "kubernetes": "kubernetes.volumes",
    "attach": "kubernetes.attach",
    "agent": "kubernetes.agent",
    "scheduler": "scheduler.scale",
    "inline": "inline.inline",
}
"""Name -> module with run(), and MOST_RUNS where more runs say no more."""
