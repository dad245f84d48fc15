"""Documents in the format SPDX 2.3, made and validated by spdx-tools (the layer `release` of the environment)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from deploy.release.sbom import Component
from license_expression import get_spdx_licensing
from spdx_tools.spdx import model
from spdx_tools.spdx.writer.json.json_writer import write_document_to_file

_ROOT = "SPDXRef-Root"
_PURPOSE = {True: model.PackagePurpose.CONTAINER, False: model.PackagePurpose.LIBRARY}


def document(file: str, version: str, sha256: str, found: Iterable[Component], time: datetime) -> model.Document:
    """A document about a file of a release that has these components inside, or needs them."""
    packages = list(map(_package, found))
    is_image = file.endswith(".tar")
    root = model.Package(
        spdx_id=_ROOT,
        name=file,
        version=version,
        file_name=file,
        download_location=model.SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[model.Checksum(model.ChecksumAlgorithm.SHA256, sha256)],
        primary_package_purpose=_PURPOSE[is_image],
    )
    creation = model.CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=file,
        document_namespace=f"https://tonnage.dev/spdx/{file}-{sha256[:16]}",
        creators=[model.Actor(model.ActorType.TOOL, "tonnage deploy.release")],
        created=time.replace(tzinfo=None),
    )
    return model.Document(creation, [root, *packages], relationships=list(_relationships(packages, is_image=is_image)))


def save(made: model.Document, file: Path) -> None:
    """Validate and write. Raises ValueError for a document that is not valid."""
    write_document_to_file(made, str(file), validate=True)


def _relationships(packages: Iterable[model.Package], *, is_image: bool) -> Iterator[model.Relationship]:
    """An image contains packages; a wheel contains its own, which needs the others."""
    yield model.Relationship("SPDXRef-DOCUMENT", model.RelationshipType.DESCRIBES, _ROOT)
    kind = model.RelationshipType.CONTAINS
    for package in packages:
        yield model.Relationship(_ROOT, kind, package.spdx_id)
        kind = kind if is_image else model.RelationshipType.DEPENDS_ON


def _package(component: Component) -> model.Package:
    licensing = get_spdx_licensing()
    known = component.license and not licensing.validate(component.license).errors
    purl = model.ExternalPackageRef(model.ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", component.purl)
    kind = component.purl.partition(":")[2].partition("/")[0]
    return model.Package(
        spdx_id=f"SPDXRef-{kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', component.name)}",
        name=component.name,
        version=component.version,
        download_location=model.SpdxNoAssertion(),
        files_analyzed=False,
        license_declared=licensing.parse(component.license) if known else model.SpdxNoAssertion(),
        external_references=[purl],
    )
