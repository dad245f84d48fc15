"""Requests in logs and traces: as one line, and as attributes of a span, without secrets.

Spans follow OpenTelemetry's conventions for RPC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from google.protobuf.message import Message

from tonnage.csi._proto import csi_pb2
from tonnage.kubernetes.api import names

LONGEST = 1000
_ABOUT = ("volume_id", "snapshot_id", "group_snapshot_id", "name", "source_volume_id")
_UNSHOWN = ("mount_flags", "publish_context")
"""May hold secrets, though CSI does not mark them so: how a node reaches a volume in the network, with its password."""
_FILLING = frozenset({names.PARAM_CONTENT, "source"})
_QUERY = re.compile(r"\?[^\"#]*")
_CONTEXTS = ("parameters", "volume_context")
_LOGGED = {
    names.CSI_PVC_NAME: "k8s.persistentvolumeclaim.name",
    names.CSI_PVC_NAMESPACE: "k8s.namespace.name",
    names.CSI_POD_UID: "k8s.pod.uid",
}


def describe(request: Message) -> str:
    """One line that describes a request, without secret values (csi.proto, csi_secret), long ones cut."""
    shown = type(request)()
    shown.CopyFrom(request)
    _strip_secrets(shown)
    return " ".join(str(shown).split())[:LONGEST]


def _strip_secrets(message: Message) -> None:
    """Clear all that must not be logged, in place."""
    for field, value in message.ListFields():
        if field.GetOptions().Extensions[csi_pb2.csi_secret] or field.name in _UNSHOWN:
            message.ClearField(field.name)
        elif field.name == "volume_context":
            value.pop(names.CSI_TOKENS, None)
        elif field.name == "parameters":
            for key in _FILLING & set(value):  # the query of a URL may hold a signature
                value[key] = _QUERY.sub("?...", value[key])
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else (value,):
                _strip_secrets(part)


def span_name(path: bytes | str) -> str:
    """The name of a span for the path of a call: csi.v1.Controller/CreateVolume."""
    return (path.decode() if isinstance(path, bytes) else path).strip("/")


def attributes(request: object) -> Mapping[str, str | int]:
    """Attributes of a call: its volume and owner, without any secret."""
    found: dict[str, str | int] = {"rpc.system": "grpc"}
    for field in _ABOUT:
        if value := getattr(request, field, ""):
            found[f"csi.{field}"] = str(value)
    for field in _CONTEXTS:
        given = getattr(request, field, {})
        found |= {word: str(given[key]) for key, word in _LOGGED.items() if key in given}
    return found
