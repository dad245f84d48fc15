"""Validation of ConfigMap, Secret and ServiceAccount."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules, name_rule

_MAX_BYTES = 1 << 20
_TYPED: Mapping[str, tuple[str, ...]] = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}
"""Keys that a Secret of the type must have."""
_JSON = (".dockerconfigjson", ".dockercfg")
_ACCOUNT = "kubernetes.io/service-account.name"
_key_form = name_rule(
    253,
    "[-._a-zA-Z0-9]+",
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    *("key.name", "KEY_NAME", "key-name"),
)


def config_key(key: str) -> Sequence[str]:
    """Fault of a key of a ConfigMap or Secret."""
    if key in (".", ".."):
        return (*_key_form(key), f"must not be '{key}'")
    return (*_key_form(key), "must not start with '..'") if key.startswith("..") else _key_form(key)


@kind_rules()
def config_map(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ConfigMap: keys of files, 1 MiB together, unchangeable if it says so."""
    data, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in data:
        faults.check(f"data[{key}]", key, config_key)
        if key in binary:
            faults.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        faults.check(f"binaryData[{key}]", key, config_key)
    size = sum(len(v.encode()) for v in data.values()) + sum(len(base64.b64decode(v)) for v in binary.values())
    if size > _MAX_BYTES:
        faults.too_long("", _MAX_BYTES)
    _frozen(faults, new, old, ("data", "binaryData"))


@kind_rules()
def secret(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Secret: as a ConfigMap, and what its type demands. No value is ever part of a message."""
    data = new.get("data") or {}
    for key in data:
        faults.check(f"data[{key}]", key, config_key)
    if sum(len(base64.b64decode(v)) for v in data.values()) > _MAX_BYTES:
        faults.too_long("data", _MAX_BYTES)
    _typed(faults, new, data)
    if old is not None:
        faults.fixed("", new, old, "type")
    _frozen(faults, new, old, ("data",))


def _typed(faults: Faults, new: Obj, data: Obj) -> None:
    kind, annotations = new.get("type", ""), new["metadata"].get("annotations") or {}
    for key in _TYPED.get(kind, ()):
        if key not in data or (key == "ssh-privatekey" and not data[key]):
            faults.required(f"data[{key}]")
        elif key in _JSON:
            _check_json(faults, data[key], f"data[{key}]")
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        faults.required("data[username]")
        faults.required("data[password]")
    if kind == "kubernetes.io/service-account-token" and not annotations.get(_ACCOUNT):
        faults.required(f"metadata.annotations[{_ACCOUNT}]")


def _check_json(faults: Faults, value: str, path: str) -> None:
    try:
        json.loads(base64.b64decode(value))
    except ValueError:
        faults.invalid(path, "<secret contents redacted>", "invalid character in JSON")


def _frozen(faults: Faults, new: Obj, old: Obj | None, fields: tuple[str, ...]) -> None:
    if old is None or not old.get("immutable"):
        return
    if not new.get("immutable"):
        faults.forbidden("immutable", "field is immutable when `immutable` is set")
    for field in fields:
        if new.get(field) != old.get(field):
            faults.forbidden(field, "field is immutable when `immutable` is set")


@kind_rules()
def service_account(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ServiceAccount."""
