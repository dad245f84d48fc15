"""The driver's configuration: what a file may say, what the command line overrides, and every rejection's text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.base.option import file_keys
from tonnage.node.config import driver
from tonnage.node.config.driver import DRIVER_FILE
from tonnage.storage.pools import kinds
from tonnage.storage.pools.config import parse
from tonnage.storage.pools.directory.kind import DirectoryConfig
from tonnage.storage.pools.fake.kind import FakeConfig

FULL = """
endpoint: unix:///run/tonnage/csi.sock
nodeName: n1
driverName: disks.example.com
topologyKey: topology.example.com/node
maxVolumes: 100
registry: /var/lib/kubelet/plugins_registry
state: /var/lib/kubelet/plugins/disks.example.com
metrics: 0.0.0.0:9100
sources: [/data/models, /data/seeds/]
cgroups: /host/sys/fs/cgroup
ioCgroup: /nomad.slice
pools:
- name: fast
  kind: image
  path: /mnt/fast
  size: 100Gi
  sparse: true
  overcommit: 1.5
- {kind: fake, size: 1073741824}
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "driver.yaml"
    path.write_text(text)
    return path


def test_a_full_file(tmp_path: Path) -> None:
    file = driver.load(_file(tmp_path, FULL))
    config = driver.merge(file, {}, driver.pools_of(file, "f"), node="host")

    assert config.endpoint == Path("/run/tonnage/csi.sock")
    assert (config.node_name, config.driver_name, config.max_volumes) == ("n1", "disks.example.com", 100)
    assert config.topology_key == "topology.example.com/node"
    assert config.registry == Path("/var/lib/kubelet/plugins_registry")
    assert str(config.metrics) == "0.0.0.0:9100"
    assert config.sources == (Path("/data/models"), Path("/data/seeds"))
    assert (config.cgroups, config.io_cgroup) == (Path("/host/sys/fs/cgroup"), "nomad.slice")
    assert config.pools == [
        DirectoryConfig(
            kinds.get("image"), Path("/mnt/fast"), "fast", 100 << 30, sparse=True, overcommit=1.5, rootfs=False
        ),
        FakeConfig(kinds.get("fake"), None, "fake", 1 << 30),
    ]


def test_the_command_line_overrides_the_file() -> None:
    file = {"endpoint": "unix:///a", "node_name": "n1", "max_volumes": 5}
    given = {"endpoint": "/b", "max_volumes": 7}
    config = driver.merge(file, given, [parse("fake,size=1Gi")], node="host")

    assert (config.endpoint, config.node_name, config.max_volumes) == (Path("/b"), "n1", 7)


def test_what_nobody_says() -> None:
    config = driver.merge({}, {"endpoint": "/b"}, [parse("fake,size=1Gi")], node="host")

    assert (config.node_name, config.driver_name) == ("host", "csi.tonnage.dev")
    assert config.state == driver.default_state("csi.tonnage.dev")
    assert (config.registry, config.metrics, config.max_volumes) == (None, None, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pols: []", "unknown field `pols`; there is cgroups, driverName, endpoint"),
        ("maxVolumes: many", "maxVolumes: expected `int`, got `str`"),
        ("pools: {}", "pools: expected `array`, got `object`"),
        ("pools: [1]", "pools[0]: expected `object`, got `int`"),
        ("- a", "expected `object`, got `array`"),
        ("endpoint: /a\nendpoint: /b", "line 2, column 1: 'endpoint' is given twice"),
        ("endpoint: [", "line 1, column 12: "),
        ("pools: [{path: /a}]", "pools[0]: kind is missing, want one of "),
        ("pools: [{kind: zfs}]", "pools[0].kind: unknown kind 'zfs', want one of "),
        ("pools: [{kind: fake, size: 1Gi}, {kind: image, path: a}]", "pools[1].path: want an absolute path"),
        ("pools: [{kind: fake, path: /a}]", "pools[0].path: a fake pool has no path"),
        ("pools: [{kind: image, path: /a, sise: 1Gi}]", "pools[0].sise: image has no option 'sise', it has name, size"),
        ("pools: [{kind: image, path: /a, size: much}]", "pools[0].size: "),
        ("pools: [{kind: image, path: /a, sparse: 3}]", "pools[0].sparse: sparse=3: want yes or no"),
        ("pools: [{kind: image, path: /a, overcommit: 0.5}]", "pools[0].overcommit: overcommit=0.5: want yes, no"),
        ("pools: [{kind: image, path: '/a,b'}]", "pools[0].path: '/a,b' has a comma"),
        ("pools: [{kind: image, path: /a, size: }]", "pools[0].size: want a text or a number, found nothing"),
        ("pools: [{kind: image, path: /a, size: [1]}]", "pools[0].size: want a text or a number, found a list"),
        ("pools: [{kind: image, path: /a, name: a/b}]", "pools[0].name: volume name 'a/b'"),
    ],
)
def test_rejected_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = _file(tmp_path, text)

    with pytest.raises(InvalidError, match=re.escape(f"{path}: {message}")):
        driver.pools_of(driver.load(path), str(path))


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert driver.load(_file(tmp_path, "")) == {}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"driver\.yaml: cannot be read: No such file"):
        driver.load(tmp_path / "driver.yaml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endpoint": ""}, "no endpoint: say where to listen, as --endpoint unix:///run/tonnage/csi.sock"),
        ({"endpoint": "tcp://1.2.3.4:5"}, "endpoint 'tcp://1.2.3.4:5': want a unix socket with an absolute path"),
        ({"endpoint": "unix://csi.sock"}, "endpoint 'unix://csi.sock': want a unix socket with an absolute path"),
        ({"endpoint": "/" + "x" * 107}, "has 108 bytes, Linux takes 107"),
        ({"max_volumes": -1}, "maxVolumes -1: want 0 (no limit) or more"),
        ({"registry": "plugins"}, "registry 'plugins': want an absolute path"),
        ({"state": "state"}, "state 'state': want an absolute path"),
        ({"topology_key": "a b"}, "topology key 'a b': want a label key"),
        ({"topology_key": "Not.Dns/node"}, "topology key 'Not.Dns/node': want a label key"),
        ({"sources": ["data"]}, "source 'data': want an absolute path"),
        ({"cgroups": "cgroup"}, "cgroups 'cgroup': want an absolute path"),
        ({"io_cgroup": "../x"}, "ioCgroup '../x': want the name of a group"),
        ({"metrics": "here"}, "metrics address 'here': want [ADDRESS:]PORT"),
        ({"metrics": "host:1"}, "metrics address 'host:1': 'host' is not an IP address"),
    ],
)
def test_rejected_settings(given: dict[str, object], message: str) -> None:
    fields = {"endpoint": "/run/csi.sock", **given}

    with pytest.raises(InvalidError, match=re.escape(message)):
        driver.merge({}, fields, [parse("fake,size=1Gi")], node="n")


def test_pools_are_needed_and_named_apart() -> None:
    given = {"endpoint": "/run/csi.sock"}
    with pytest.raises(InvalidError, match="no pools: name at least one"):
        driver.merge({}, given, [], node="n")
    with pytest.raises(InvalidError, match="two pools are named 'fake': give each a name="):
        driver.merge({}, given, [parse("fake,size=1Gi"), parse("fake,size=2Gi")], node="n")


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs" / "tasks" / "run-driver.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = driver.load(_file(tmp_path, example))

    config = driver.merge(file, {}, driver.pools_of(file, "f"), node="host")
    assert [(pool.name, pool.kind.name) for pool in config.pools] == [("fast", "image"), ("scratch", "btrfs")]


def test_every_field_is_documented() -> None:
    text = (Path(__file__).parents[4] / "docs" / "tasks" / "run-driver.md").read_text()

    assert [f for f in file_keys(DRIVER_FILE) if f"| `{f}` |" not in text] == []


def test_pools_that_are_no_folders(tmp_path: Path) -> None:
    """A volume group stands where others have a path."""
    file = tmp_path / "driver.yaml"
    file.write_text("pools: [{name: a, kind: lvm, path: vg0, thin: t}, {name: b, kind: pmem}]")
    found = driver.pools_of(driver.load(file), "driver.yaml")
    assert [str(pool) for pool in found] == ["lvm:vg0,name=a,thin=t", "pmem,name=b"]
