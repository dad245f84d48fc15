"""The mounted Secret of an issuer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.controller.certificates.authority_folder import AuthorityFolder


async def test_a_secret_that_is_no_authority(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("x")
    with pytest.raises(UnavailableError, match="want PEM"):
        await AuthorityFolder(tmp_path)()
