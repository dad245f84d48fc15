"""Every text of a PodSpec, as hostile as can be: it changes the argument of bwrap that it is meant for, and no other.

The fields come from the API server's schema, so a new field is tried as soon as it is known there. Each pod goes two
ways: through the API server, and straight to the kubelet, as from a server that rejects nothing.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import TonnageError
from tonnage.host.encoding import encode
from tonnage.kubernetes.api import pods
from tonnage.kubernetes.api.pods import Container, Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.schema import schemas
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.kubelet.containers import bubblewrap, rootfs
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.env import Environment
from tonnage_box.kubelet.containers.rootfs import Bind
from tonnage_box.kubelet.containers.runtime import ContainerSpec, Mounted
from tonnage_box.kubelet.containers.spawn import join
from tonnage_box.kubelet.volumes import subpaths
from tonnage_box.kubelet.volumes.builtin_volumes import FileVolumes
from tonnage_box.kubelet.volumes.pod_certificates import Credential, PodCertificates
from tonnage_box.kubelet.volumes.sources import NodeFields, ObjectSources

Place = tuple[str | int, ...]
_ARITY = {
    **dict.fromkeys(("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--clearenv"), 0),
    **dict.fromkeys(("--hostname", "--proc", "--dev", "--chdir", "--cap-drop", "--cap-add"), 1),
    **dict.fromkeys(("--ro-bind", "--ro-bind-try", "--symlink", "--setenv"), 2),
}
_HOSTILE = (
    "x\0--bind\0/\0/hostroot",
    "/x\0--cap-add\0ALL",
    "--bind",
    "--",
    "/a\n--bind /",
    "\"'`$(touch /x)'\"",
    "\ud800",
    "\udc80\udcff",
    "$(ANNOTATED)",
    "-x",
    "=",
    "LD_PRELOAD=x",
)
_TEXTS = st.one_of(
    st.sampled_from(_HOSTILE),
    st.text(
        st.sampled_from(["\0", "\n", '"', "'", "-", "/", "a", "$", "(", ")", "=", ".", " ", "\ud800", "é"]),
        min_size=1,
        max_size=12,
    ),
    st.text(min_size=1, max_size=20),
)
_BASE: dict[str, Any] = {
    "hostname": "host",
    "restartPolicy": "Never",
    "serviceAccountName": "account",
    "volumes": [
        {"name": "v", "emptyDir": {}},
        {"name": "d", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
    ],
    "containers": [
        {
            "name": "main",
            "image": "image",
            "command": ["/bin/sh", "-c"],
            "args": ["echo $(PLAIN)"],
            "workingDir": "/work",
            "terminationMessagePath": "/dev/termination-log",
            "env": [
                {"name": "PLAIN", "value": "v"},
                {"name": "LD_PRELOAD", "value": "l"},
                {"name": "EXPANDED", "value": "x$(PLAIN)$(ANNOTATED)"},
                {"name": "ANNOTATED", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}},
                {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
                {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}}},
            ],
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}],
            "resources": {"limits": {"cpu": "1"}},
            "volumeMounts": [
                {"name": "v", "mountPath": "/data", "subPath": "part"},
                {"name": "v", "mountPath": "/expr", "subPathExpr": "$(PLAIN)"},
            ],
            "volumeDevices": [{"name": "d", "devicePath": "/dev/raw"}],
        }
    ],
}  # fmt: skip
_BASE["volumes"][1]["ephemeral"]["volumeClaimTemplate"]["spec"] |= {
    "volumeMode": "Block",
    "resources": {"requests": {"storage": "1Gi"}},
}
_BASE["initContainers"] = [{**copy.deepcopy(_BASE["containers"][0]), "name": "first"}]


def _texts(kind: schemas.Type, at: Place, inside: tuple[str, ...]) -> Iterator[Place]:
    """Where a value of that type holds text; "*" stands for a key of a map that is itself the text."""
    if kind.word == "struct":
        if kind.struct not in inside:
            for name, field in schemas.struct(kind.struct).fields.items():
                yield from _texts(field.type, (*at, name), (*inside, kind.struct))
    elif kind.word in ("[]", "{}"):
        assert kind.item is not None
        yield from _texts(kind.item, (*at, 0 if kind.word == "[]" else "key"), inside)
        if kind.word == "{}":
            yield (*at, "*")
    elif kind.word not in ("int", "long", "bool", "number"):
        yield at


_PLACES = list(_texts(schemas.Type("struct", None, "core.v1.PodSpec"), (), ()))


def _put(spec: dict[str, Any], place: Place, text: str) -> dict[str, Any]:
    """The spec with that text at that place; what is missing on the way is made."""
    spec = copy.deepcopy(spec)
    if place[:2] == ("volumes", 0) and len(place) > 3:
        spec["volumes"][0] = {"name": "v"}
    if "valueFrom" in place:
        for variable in spec.get(str(place[0]), [{}])[0].get("env", [])[:1]:
            variable.pop("value")
    at: Any = spec
    for part, following in itertools.pairwise(place):
        if isinstance(part, int) and not at:
            at.append([] if isinstance(following, int) else {})
        elif isinstance(part, str) and part not in at:
            at[part] = [] if isinstance(following, int) else {}
        at = at[part]
    last = place[-1]
    if isinstance(last, int):
        at[:1] = [text]
    else:
        at[text if last == "*" else last] = "1" if last == "*" else text
    return spec


class _Sources(ObjectSources):
    """ConfigMaps and Secrets that all hold the same."""

    def __init__(self, text: str) -> None:
        super().__init__(cast("Client", None), NodeFields("n", "127.0.0.1", {"cpu": "1"}))
        self._data = text.encode(errors="surrogatepass")

    async def of(self, kind: str, namespace: str, name: str, *, optional: bool) -> dict[str, bytes]:
        return {"k": self._data, "LD_AUDIT": self._data, "bad key": self._data}

    async def trust_anchors(self, source: pods.ClusterTrustBundleProjection) -> bytes:
        return self._data

    async def token(self, pod: Pod, *, audience: str, seconds: int) -> bytes:
        return self._data


class _Certificates(PodCertificates):
    """A signer that answers at once."""

    async def shown(self, pod: Pod, volume: str, number: int, source: pods.PodCertificateProjection) -> Credential:
        return Credential(b"k", b"c", 2e9, 2e9)

    def wait(self, pod: Pod, volume: str, number: int) -> float:
        return 1.0


class Asked(NamedTuple):
    """What bwrap would be asked: its options with their arguments, and the command: as whom and where.

    binds: what would be mounted in the root that it makes.
    """

    options: list[tuple[str, ...]]
    binds: list[Bind]
    command: list[str]
    who: rootfs.User
    working_dir: str


class _Bench:
    """A kubelet's way from a pod to bwrap's arguments, without starting anything."""

    def __init__(self, folder: Path) -> None:
        self.runtime = BubblewrapRuntime(folder, RealClock())
        self.volume = folder / "volume"
        self.volume.mkdir()
        self.volumes = {"v": Mounted(str(self.volume)), "d": Mounted("/dev/null", block=True)}
        self._base: dict[str, Asked] = {}

    async def base(self, pod: Pod, container: Container) -> Asked:
        """The same as ask(), once for each container of a pod that stays the same."""
        if container.name not in self._base:
            self._base[container.name] = await self.ask(pod, container, "s")
        return self._base[container.name]

    async def ask(self, pod: Pod, container: Container, sources: str) -> Asked:
        found = _Sources(sources)
        environment = await Environment(found).of(pod, container)
        files = FileVolumes(self.runtime.paths, found)
        files._root = False  # nothing is mounted here
        files.certificates = _Certificates(found.client, "n")
        for volume in pod.spec.volumes:
            if volume.ephemeral is None and volume.csi is None and volume.persistent_volume_claim is None:
                await _mount(files, pod, volume)
        spec = ContainerSpec(pod, container, 0, self.volumes, environment)
        planned = bubblewrap._Plan(self.runtime, spec).arguments()
        for text in planned.argv:
            assert b"\0" not in encode(text, "argument")
        planned.starter(-1, terminal=False, capabilities=0)
        return Asked(_parse(join(planned.options)), planned.binds, planned.argv, planned.who, planned.working_dir)


async def _mount(files: FileVolumes, pod: Pod, volume: pods.Volume) -> None:
    sources = (volume.config_map, volume.secret, volume.empty_dir, volume.downward_api, volume.projected)
    if any(source is not None for source in (*sources, volume.host_path)):
        await files.mount(pod, volume)


def _parse(data: bytes) -> list[tuple[str, ...]]:
    """Read options as bwrap does."""
    words = [word.decode("utf-8", "surrogateescape") for word in data.split(b"\0")]
    assert words.pop() == ""
    options = []
    while words:
        count = 1 + _ARITY[words[0]]
        assert len(words) >= count
        options.append(tuple(words[:count]))
        del words[:count]
    return options


def _intended(place: Place) -> set[str]:
    """The options that a field is there for."""
    if place in (("hostname",), ("hostnameOverride",)):
        return {"--hostname", "--setenv"}
    if place == ("serviceAccountName",):
        return {"--setenv"}
    if place[0] not in ("containers", "initContainers"):
        return set()
    word = place[2]
    if word in ("env", "envFrom", "resources"):
        return {"--setenv"}
    return set()


def _compare(before: Asked, after: Asked, place: Place) -> None:
    allowed = _intended(place)
    assert [o for o in before.options if o[0] not in allowed] == [o for o in after.options if o[0] not in allowed]
    old, new = (_count(asked.options) for asked in (before, after))
    moves = place[2:] if len(place) > 2 else ()
    if not {"env", "envFrom"} & set(moves):  # a variable may move to the command, or be optional
        assert old == new
    assert old.keys() | {"--setenv"} == new.keys() | {"--setenv"}
    _compare_binds(before.binds, after.binds, place)
    _compare_commands(before, after, place)


def _compare_binds(before: list[Bind], after: list[Bind], place: Place) -> None:
    """A field changes where its own volume is mounted; the container's name is a part of its folder's."""
    word = place[2] if place[0] in ("containers", "initContainers") else ""
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        if word not in ("volumeMounts", "volumeDevices"):
            assert (old.target, old.read_only, old.device) == (new.target, new.read_only, new.device)
        if old.source != new.source:
            assert word == "name"
            assert "/pods/u/" in new.source
        assert os.path.normpath(new.target) == new.target


def _count(options: list[tuple[str, ...]]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for option in options:
        counts[option[0]] = counts.get(option[0], 0) + 1
    return counts


def _compare_commands(before: Asked, after: Asked, place: Place) -> None:
    assert before.who == after.who
    if "workingDir" in place:
        assert after.working_dir.startswith("/")
    else:
        assert before.working_dir == after.working_dir
    if not {"env", "envFrom", "command", "args"} & set(place):
        assert before.command == after.command


async def _through(server: ApiServer, spec: dict[str, Any], annotations: dict[str, str]) -> Pod | None:
    """The pod as the API server would store it, None when it rejects it."""
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec}
    path = "/api/v1/namespaces/default/pods"
    answer = await server.transport().request(Request("POST", path, {"dryRun": "All"}, json.dumps(body).encode()))
    assert answer.status in (201, 400, 403, 422), answer.body
    if answer.status != 201:
        return None
    pod = msgspec.json.decode(answer.body, type=Pod)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid="u"))


def _straight(spec: dict[str, Any], annotations: dict[str, str]) -> Pod:
    meta = {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations}
    return msgspec.convert({"metadata": meta, "spec": spec}, Pod)


def _say(failure: TonnageError, text: str) -> None:
    """The pod's status says it; lone surrogates in names come through no API server."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        msgspec.json.encode(str(failure))


async def _try(bench: _Bench, server: ApiServer, place: Place, text: str) -> int:
    """Try one field both ways; how often it got as far as bwrap."""
    spec, reached = _put(_BASE, place, text), 0
    plain, stored = _straight(_BASE, {"a": "a"}), await _through(server, spec, {"a": "a"})
    assert stored is None or "\0" not in text
    for pod in (stored, _straight(spec, {"a": "a"})):
        if pod is None:
            continue
        for word, old, new in (
            ("initContainers", plain.spec.init_containers[0], pod.spec.init_containers[0]),
            ("containers", plain.spec.containers[0], pod.spec.containers[0]),
        ):
            try:
                after = await bench.ask(pod, new, "s")
            except TonnageError as failure:
                _say(failure, text)
                continue
            reached += 1
            other = place[0] in ("containers", "initContainers") and place[0] != word
            _compare(await bench.base(plain, old), after, ("other",) if other else place)
    return reached


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Bench:
    def bind(volume: str, path: str, target: str, *, read_only: bool) -> str:
        subpaths.check(path)
        return target

    monkeypatch.setattr("tonnage_box.kubelet.volumes.subpaths.bind", bind)
    return _Bench(tmp_path)


@pytest.fixture
async def server() -> ApiServer:
    made = ApiServer(Store(extractor()))
    await made.start()
    return made


def test_the_base_reaches_bwrap(bench: _Bench) -> None:
    """Otherwise the tests below would compare nothing."""
    pod = _straight(_BASE, {"a": "note"})
    asked = asyncio.run(bench.ask(pod, pod.spec.containers[0], "s"))
    assert ("--setenv", "EXPANDED", "xv$(ANNOTATED)") in asked.options
    assert ("--setenv", "ANNOTATED", "note") in asked.options
    assert {"/data", "/expr", "/dev/raw"} <= {bind.target for bind in asked.binds}
    assert ("--setenv", "LD_PRELOAD", "l") in asked.options


def _is_named(kind: Any, text: str) -> bool:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_struct and re.search(rf"\b{kind.__name__}\b", text) is not None


def test_every_text_of_the_kubelets_own_types_is_tried() -> None:
    names = {part for place in _PLACES for part in place}
    known: set[type] = set()

    def visit(kind: type[msgspec.Struct]) -> None:
        for field in msgspec.structs.fields(kind):
            text = str(field.type)
            if "str" in text:
                assert field.encode_name in names, f"{kind.__name__}.{field.encode_name}"
            for inner in vars(pods).values():
                if _is_named(inner, text) and inner not in known:
                    known.add(inner)
                    visit(inner)

    visit(pods.PodSpec)
    assert {Container, pods.VolumeMount, pods.EnvVar, pods.VolumeDevice, pods.Volume} <= known


@pytest.mark.slow
@pytest.mark.parametrize("text", [_HOSTILE[0], "--bind", "\ud800"])
async def test_no_field_reaches_another_argument(bench: _Bench, server: ApiServer, text: str) -> None:
    assert len(_PLACES) > 500
    reached = 0
    for place in _PLACES:
        reached += await _try(bench, server, place, text)
    assert reached > len(_PLACES)  # most fields are not bwrap's business, and the pod starts


@examples(150)
@given(data=st.data())
def test_no_text_reaches_another_argument(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    bwraps = [p for p in _PLACES if p[0] in ("containers", "hostname", "volumes", "serviceAccountName")]
    place = data.draw(st.sampled_from(bwraps))
    text = data.draw(_TEXTS)

    async def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "tonnage_box.kubelet.volumes.subpaths.bind",
                lambda v, path, at, *, read_only: (subpaths.check(path), at)[1],
            )
            made = ApiServer(Store(extractor()))
            await made.start()
            try:
                await _try(_Bench(tmp_path_factory.mktemp("pod")), made, place, text)
            finally:
                await made.stop()

    asyncio.run(work())


@examples(150)
@given(annotation=_TEXTS, sources=_TEXTS)
def test_no_value_from_elsewhere_reaches_another_argument(
    tmp_path_factory: pytest.TempPathFactory, annotation: str, sources: str
) -> None:
    """Annotations, ConfigMaps and Secrets, also where $(VAR) puts them."""
    spec = copy.deepcopy(_BASE)
    container = spec["containers"][0]
    container["args"] = ["$(ANNOTATED)", "$(KEY)"]
    container["env"].insert(0, container["env"].pop(3))
    container["volumeMounts"][1]["subPathExpr"] = "a$(ANNOTATED)"
    bench = _Bench(tmp_path_factory.mktemp("pod"))

    async def ask(note: str, data: str) -> Asked:
        pod = _straight(spec, {"a": note})
        return await bench.ask(pod, pod.spec.containers[0], data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tonnage_box.kubelet.volumes.subpaths.bind", lambda v, path, at, *, read_only: (subpaths.check(path), at)[1]
        )
        before = asyncio.run(ask("a", "a"))
        try:
            after = asyncio.run(ask(annotation, sources))
        except TonnageError as failure:
            _say(failure, annotation)
            return
    assert "\0" not in annotation + sources
    _compare(before, after, ("containers", 0, "env", 0, "value"))
    assert [o[:2] for o in before.options] == [o[:2] for o in after.options]
    assert len(before.command) == len(after.command)
