"""A registry in the test's process: what a server of files has to have for an image."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.storage.content.server import Files

from tonnage_box.testing import image_archive as made

OCI_INDEX = "application/vnd.oci.image.index.v1+json"


def put(files: Files, repository: str, tag: str, *layers: bytes, compressed: bool = True) -> str:
    """Serve an image of these layers, and return the digest of its manifest."""
    return put_layout(files, repository, tag, made.layout(layers, compressed=compressed))


def put_layout(files: Files, repository: str, tag: str, layout: dict[str, bytes]) -> str:
    """Serve the image of a layout."""
    found = json.loads(layout["index.json"])["manifests"][0]["digest"]
    base = f"/v2/{repository}"
    for path, data in layout.items():
        if path.startswith("blobs/"):
            files.files[f"{base}/blobs/sha256:{path.rpartition('/')[2]}"] = data
    data = files.files.pop(f"{base}/blobs/{found}")
    files.files[f"{base}/manifests/{found}"] = files.files[f"{base}/manifests/{tag}"] = data
    return str(found)


def put_index(files: Files, repository: str, tag: str, *entries: dict[str, Any]) -> str:
    """Serve an index, and return its digest."""
    data = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).encode()
    files.files[f"/v2/{repository}/manifests/{made.digest(data)}"] = data
    files.files[f"/v2/{repository}/manifests/{tag}"] = data
    return made.digest(data)


def entry(files: Files, repository: str, digest: str, **platform: str) -> dict[str, Any]:
    """An entry of an index for a manifest that is served."""
    data = files.files[f"/v2/{repository}/manifests/{digest}"]
    kind = json.loads(data)["mediaType"]
    more = {"platform": platform} if platform else {}
    return {"mediaType": kind, "digest": digest, "size": len(data), **more}


def layer_paths(files: Files) -> list[str]:
    """Paths of the layers that are served, of compressed ones."""
    return [path for path, data in files.files.items() if "/blobs/" in path and data[:2] == b"\x1f\x8b"]


def asked(files: Files, part: str) -> list[dict[str, str]]:
    """Headers of the requests for paths with that part."""
    return [headers for path, headers in files.seen if part in path]
