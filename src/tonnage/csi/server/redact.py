"""Redacted requests for logs: without secrets, tokens and mount flags."""

from __future__ import annotations

from google.protobuf.message import Message

from tonnage.csi._proto import csi_pb2

_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
LONGEST = 1000


def describe(request: Message) -> str:
    """One line that describes a request, without secret values (csi.proto, csi_secret), long ones cut."""
    shown = type(request)()
    shown.CopyFrom(request)
    strip_secrets(shown)
    return " ".join(str(shown).split())[:LONGEST]


def strip_secrets(message: Message) -> None:
    """Clear all that must not be logged, in place."""
    for field, value in message.ListFields():
        if field.GetOptions().Extensions[csi_pb2.csi_secret] or field.name == "mount_flags":
            message.ClearField(field.name)
        elif field.name == "volume_context":
            value.pop(_TOKENS, None)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else (value,):
                strip_secrets(part)
