"""Columns of tonnage.dev, as its CRD has them."""

from __future__ import annotations

from tonnage_box.apiserver.printers.table import AGE, NAME, at

CONTENT = (
    NAME,
    at("Image", "spec", "image", "reference"),
    at("URL", "spec", "url", "url"),
    at("Bucket", "spec", "s3", "bucket"),
    at("Folder", "spec", "folder", "name"),
    AGE,
)
