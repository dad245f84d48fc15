"""The validator of the SPDX project, for tests of lists of what is inside."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def spdx_faults(file: Path) -> list[str]:
    """What it says of a document."""
    parser = import_module("spdx_tools.spdx.parser.parse_anything")
    validator = import_module("spdx_tools.spdx.validation.document_validator")
    found = validator.validate_full_spdx_document(parser.parse_file(str(file)))
    return [message.validation_message for message in found]
