"""Cells that the columns of several groups have: containers, selectors, labels, addresses (pkg/printers). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tonnage_box.apiserver.printers.table import Column, Obj, at, dig, of


def count(name: str, *path: str) -> Column:
    """A column with a number, 0 where there is none."""
    return at(name, *path, empty=0, kind="integer")


def _each(word: str, obj: Obj) -> str:
    return ",".join(c.get(word, "") for c in dig(obj, "spec", "template", "spec", "containers") or ())


def shown_selector(obj: Obj) -> str:
    """metav1.FormatLabelSelector."""
    selector = dig(obj, "spec", "selector") or {}
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        key, values = one.get("key", ""), ",".join(sorted(one.get("values") or ()))
        words = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "DoesNotExist": f"!{key}"}
        parts.append(words.get(one.get("operator", ""), key))
    return ",".join(sorted(parts)) or "<none>"


names, images = partial(_each, "name"), partial(_each, "image")
CONTAINERS = (of("Containers", names, 1), of("Images", images, 1))
SELECTOR = of("Selector", shown_selector, 1)

FEW = 3
_WIDTH = 16


def few(found: Sequence[str], limit: int = FEW) -> str:
    """The first of a list, and how many more there are."""
    text = ",".join(found[:limit])
    return f"{text} + {len(found) - limit} more..." if len(found) > limit else text


def shown_labels(pairs: Any) -> str:
    """`a=b,c=d`, or <none> (labels.FormatLabels)."""
    return ",".join(f"{key}={value}" for key, value in sorted((pairs or {}).items())) or "<none>"


def balancer(obj: Obj) -> str:
    """Addresses of a load balancer, cut to the width that Kubernetes prints."""
    found = dig(obj, "status", "loadBalancer", "ingress") or ()
    text = ",".join(sorted({i.get("ip") or i.get("hostname") or "" for i in found} - {""}))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
