"""State that survives a restart."""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.csi.inline.cert.state import CertificateState, load_state, save_state


def test_written_for_root_only_and_read_again(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    state = CertificateState("name", b"KEYBYTES", b"request", "digest")
    save_state(tmp_path, state)
    assert load_state(tmp_path) == state
    assert [os.stat(file).st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600]
    assert "KEYBYTES" not in repr(state)


def test_what_a_kill_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "certificate.new").write_text("half")
    save_state(tmp_path, CertificateState("name", b"", b"", ""))
    assert load_state(tmp_path) is not None
    (tmp_path / "certificate").write_text("{")
    assert load_state(tmp_path) is None
