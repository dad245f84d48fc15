"""FlexVolume calls and answers, as the kubelet's program passes them (pkg/volume/flexvolume). No input or output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import quantity
from tonnage.kubernetes.api.names import FLEX_SIZES

MOUNT, UNMOUNT = "mount", "unmount"
LARGEST = 1 << 20
"""Bytes of a request."""
_RESERVED = "kubernetes.io/"
_ARGUMENTS = {MOUNT: 4, UNMOUNT: 3}
_IGNORED = frozenset({"path", "directory", "name"})
"""Options of localflex: where its folder was, and the volume's name. A path of a manifest is never followed."""
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class FlexTarget:
    """Where a volume is to be mounted: `<kubelet>/pods/<pod>/volumes/<vendor>~<driver>/<volume>`."""

    path: Path
    driver: str
    pod: str
    volume: str


@dataclass(frozen=True)
class FlexCall:
    """A call of the kubelet. options: as JSON, "" for unmount; they may hold Secrets."""

    command: str
    target: FlexTarget
    options: str = field(default="", repr=False)


@dataclass(frozen=True)
class FlexOptions:
    """Options of a mount. parameters: of the pool. size: bytes, 0 where not given."""

    volume: str
    pod_name: str
    pod_namespace: str
    pod_uid: str
    fs_type: str
    read_only: bool
    size: int
    parameters: Mapping[str, str]


def parse_request(data: bytes, kubelet: Path) -> FlexCall:
    """Parse what the program wrote: its own path and its arguments, each with a NUL. Raises: InvalidError."""
    if len(data) >= LARGEST:
        raise InvalidError(f"the call is longer than {LARGEST} bytes")
    parts = data.split(b"\0")
    if parts.pop() != b"":
        raise InvalidError("the call is cut off")
    try:
        texts = [part.decode() for part in parts]
    except UnicodeDecodeError:
        raise InvalidError("the call is not UTF-8") from None
    command = texts[1] if len(texts) > 1 else ""
    if len(texts) != _ARGUMENTS.get(command):
        raise InvalidError(f"call {command[:20]!r}: want `mount DIR OPTIONS` or `unmount DIR`")
    return FlexCall(command, parse_target(texts[2], kubelet), texts[3] if command == MOUNT else "")


def parse_target(text: str, kubelet: Path) -> FlexTarget:
    """Parse the folder of a call, which must be one of a pod's volumes below the kubelet's. Raises: InvalidError."""
    path = Path(text)
    root = f"{kubelet}/pods/"
    parts = text.removeprefix(root).split("/")
    if not text.startswith(root) or os.path.normpath(text) != text or len(parts) != 4 or parts[1] != "volumes":
        raise InvalidError(f"folder {text[:200]!r}: want {root}<uid>/volumes/<vendor>~<driver>/<volume>")
    pod, _, plugin, volume = parts
    if not all(parts) or "~" not in plugin:
        raise InvalidError(f"folder {text[:200]!r}: want {root}<uid>/volumes/<vendor>~<driver>/<volume>")
    return FlexTarget(path, plugin.replace("~", "/", 1), pod, volume)


def parse_options(call: FlexCall) -> FlexOptions:
    """Parse the options of a mount. Raises: InvalidError, which names keys and never shows values of others."""
    try:
        given = msgspec.json.decode(call.options, type=dict[str, str])
    except msgspec.MsgspecError:
        raise InvalidError("the options are no JSON object of strings") from None
    own = {key.removeprefix(_RESERVED): value for key, value in given.items() if key.startswith(_RESERVED)}
    author = {key: value for key, value in given.items() if not key.startswith(_RESERVED)}
    needed = {key: own.get(key, "") for key in ("pvOrVolumeName", "pod.name", "pod.namespace", "pod.uid")}
    if missing := sorted(key for key, value in needed.items() if not value):
        raise InvalidError(f"the kubelet's option {_RESERVED}{missing[0]} is missing")
    if (needed["pod.uid"], needed["pvOrVolumeName"]) != (call.target.pod, call.target.volume):
        raise InvalidError("the options are of another pod or volume than the folder")
    mode = own.get("readwrite", "")
    if mode not in ("rw", "ro"):
        raise InvalidError(f"the kubelet's option {_RESERVED}readwrite is {mode[:20]!r}: want rw or ro")
    return FlexOptions(
        needed["pvOrVolumeName"],
        needed["pod.name"],
        needed["pod.namespace"],
        needed["pod.uid"],
        own.get("fsType", ""),
        mode == "ro",
        size_of(author),
        {key: value for key, value in author.items() if key not in FLEX_SIZES and key not in _IGNORED},
    )


def size_of(options: Mapping[str, str]) -> int:
    """The size that options ask for, 0 for none. Raises: InvalidError."""
    given = [key for key in FLEX_SIZES if options.get(key)]
    if len(given) > 1:
        raise InvalidError(f"options: give one of {' and '.join(FLEX_SIZES)}")
    if not given:
        return 0
    text = options[given[0]]
    size = quantity.to_bytes(text)
    if size <= 0:
        raise InvalidError(f"options: {given[0]}={text[:40]!r}: want more than 0")
    return size


def encode_answer(failure: str = "") -> bytes:
    """The answer to a call, one line: Success, or why it failed."""
    status = {"status": "Failure", "message": failure[:_LONGEST_MESSAGE]} if failure else {"status": "Success"}
    return msgspec.json.encode(status) + b"\n"
