"""Content objects: what claims of their namespace may have their volumes filled with."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api.meta import KubeObject


class ContentObject(KubeObject, frozen=True):
    """What a volume is filled with. spec: exactly one of image, url, s3 and folder."""

    spec: dict[str, Any] = {}
