"""Options of remote commands."""

from __future__ import annotations

from tonnage_box.api.remote_command import StreamOptions


def test_without_a_command_it_is_attach() -> None:
    assert StreamOptions("c").is_attach
    assert not StreamOptions("c", ("true",)).is_attach
