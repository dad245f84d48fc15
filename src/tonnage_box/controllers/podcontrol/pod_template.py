"""Pods from a template, and the template hash in names and labels."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.workloads import Template

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels, so that no word comes out (apimachinery rand.SafeEncodeString)."""
_HASHED_NAME = 63 - 11
_encode = msgspec.json.Encoder(order="sorted").encode


def owner_reference(kind: Kind[Any], owner: KubeObject) -> dict[str, Any]:
    """The reference that makes owner the controller of an object."""
    meta = owner.metadata
    return {**kind.head(), "name": meta.name, "uid": meta.uid, "controller": True, "blockOwnerDeletion": True}


def pod_of(template: Template, owner: dict[str, Any], *, name: str = "", prefix: str = "") -> dict[str, Any]:
    """A pod of the template, to be created: by name, or by a generated name that begins with prefix.

    It is the caller's to change.
    """
    meta = template.get("metadata") or {}
    given = {word: copy.copy(meta[word]) for word in ("labels", "annotations", "finalizers") if meta.get(word)}
    named = {"name": name} if name else {"generateName": prefix}
    return {"metadata": {**named, **given, "ownerReferences": [owner]}, "spec": copy.deepcopy(template["spec"])}


def digest(value: Any, collisions: int | None = None) -> str:
    """A hash of plain data of at most ten letters; another one for each number of collisions."""
    text = _encode(value) + (b"" if collisions is None else str(collisions).encode())
    number = int.from_bytes(hashlib.sha256(text).digest()[:4])
    return "".join(_LETTERS[ord(figure) % len(_LETTERS)] for figure in str(number))


def hashed_name(owner_name: str, hashed: str) -> str:
    """`<owner>-<hash>`, shortened where it would not fit a label."""
    return f"{owner_name[:_HASHED_NAME].rstrip('.-')}-{hashed}"


def without_hash(template: Template) -> Template:
    """A template without the label pod-template-hash, as its author wrote it."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    if names.POD_TEMPLATE_HASH not in labels:
        return template
    remaining = {key: value for key, value in labels.items() if key != names.POD_TEMPLATE_HASH}
    return {**template, "metadata": {**template["metadata"], "labels": remaining}}


def with_labels(template: Template, labels: Mapping[str, str]) -> Template:
    """The template with more labels."""
    meta = template.get("metadata") or {}
    return {**template, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **labels}}}


def scaled(value: int | str | None, total: int, *, up: bool) -> int:
    """A count, or a percentage of total rounded up or down (intstr.GetScaledValueFromIntOrPercent)."""
    if isinstance(value, str):
        hundredths = (whole(value.rstrip("%"), digits=9) or 0) * total
        return -(-hundredths // 100) if up else hundredths // 100
    return value or 0
