"""Validation of ConfigMap, Secret and ServiceAccount."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from tonnage.box.apiserver.validation.field_errors import Faults, immutable
from tonnage.box.apiserver.validation.meta import metadata, too_long
from tonnage.errors import FieldCause

Obj = dict[str, Any]
_MAX_BYTES = 1 << 20
_KEY_FORM = "[-._a-zA-Z0-9]+"
_KEY = re.compile(_KEY_FORM)


def config_key(key: str) -> list[str]:
    """Fault of a key of a ConfigMap or Secret."""
    faults = [too_long(253)] if len(key.encode()) > 253 else []
    if not _KEY.fullmatch(key):
        faults.append(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
            f"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY_FORM}')"
        )
    if key == ".":
        faults.append("must not be '.'")
    elif key == "..":
        faults.append("must not be '..'")
    elif key.startswith(".."):
        faults.append("must not start with '..'")
    return faults


def config_map(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """ConfigMap: keys of files, 1 MiB together, unchangeable if it says so."""
    faults = Faults()
    metadata(faults, new, old=old)
    data, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in data:
        faults.each(f"data[{key}]", key, config_key(key))
        if key in binary:
            faults.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        faults.each(f"binaryData[{key}]", key, config_key(key))
    size = sum(len(v.encode()) for v in data.values()) + sum(len(base64.b64decode(v)) for v in binary.values())
    if size > _MAX_BYTES:
        faults.too_long("", _MAX_BYTES)
    _frozen(faults, new, old, ("data", "binaryData"))
    return faults


def secret(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Secret: as a ConfigMap, and what its type demands. No value is ever part of a message."""
    faults = Faults()
    metadata(faults, new, old=old)
    data = new.get("data") or {}
    for key in data:
        faults.each(f"data[{key}]", key, config_key(key))
    if sum(len(base64.b64decode(v)) for v in data.values()) > _MAX_BYTES:
        faults.too_long("data", _MAX_BYTES)
    _typed(faults, new, data)
    if old is not None:
        immutable(faults, new.get("type"), old.get("type"), "type")
    _frozen(faults, new, old, ("data",))
    return faults


def _typed(faults: Faults, new: Obj, data: Obj) -> None:
    match new.get("type"):
        case "kubernetes.io/dockerconfigjson":
            _docker(faults, data, ".dockerconfigjson")
        case "kubernetes.io/dockercfg":
            _docker(faults, data, ".dockercfg")
        case "kubernetes.io/basic-auth":
            if not data.keys() & {"username", "password"}:
                faults.required("data[username]")
                faults.required("data[password]")
        case "kubernetes.io/ssh-auth":
            if not data.get("ssh-privatekey"):
                faults.required("data[ssh-privatekey]")
        case "kubernetes.io/tls":
            for key in ("tls.crt", "tls.key"):
                if key not in data:
                    faults.required(f"data[{key}]")
        case "kubernetes.io/service-account-token":
            if not (new["metadata"].get("annotations") or {}).get("kubernetes.io/service-account.name"):
                faults.required("metadata.annotations[kubernetes.io/service-account.name]")


def _docker(faults: Faults, data: Obj, key: str) -> None:
    if key not in data:
        faults.required(f"data[{key}]")
        return
    try:
        json.loads(base64.b64decode(data[key]))
    except ValueError:
        faults.invalid(f"data[{key}]", "<secret contents redacted>", "invalid character in JSON")


def _frozen(faults: Faults, new: Obj, old: Obj | None, fields: tuple[str, ...]) -> None:
    if old is None or not old.get("immutable"):
        return
    if not new.get("immutable"):
        faults.forbidden("immutable", "field is immutable when `immutable` is set")
    for field in fields:
        if new.get(field) != old.get(field):
            faults.forbidden(field, "field is immutable when `immutable` is set")


def service_account(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """ServiceAccount."""
    faults = Faults()
    metadata(faults, new, old=old)
    return faults
