"""Options of exec and attach, as clients write them."""

from __future__ import annotations

import pytest

from tonnage.base.errors import ApiError
from tonnage.kubernetes.client.transport import Request
from tonnage_box.api.remote_command import StreamOptions
from tonnage_box.apiserver.rest.remote_command import read_options


def request(*pairs: tuple[str, str]) -> Request:
    return Request("GET", "/", dict(reversed(pairs)), upgrade="websocket", pairs=pairs)


def test_a_command_of_several_words() -> None:
    asked = request(("command", "sh"), ("command", "-c"), ("command", ""), ("stdin", "true"), ("container", "c"))
    assert read_options("exec", asked) == StreamOptions(
        "c", ("sh", "-c", ""), stdin=True, stdout=True, stderr=True, tty=False
    )


def test_a_terminal_has_no_errors_of_its_own() -> None:
    found = read_options("attach", request(("command", "ignored"), ("tty", "true"), ("stdout", "1"), ("stderr", "1")))
    assert found == StreamOptions("", (), stdout=True, tty=True)


@pytest.mark.parametrize(
    "pairs",
    [(), (("command", ""),), (("command", "a"), ("stdout", "0"), ("stderr", "0")), (("command", "a"), ("tty", "x"))],
)
def test_what_cannot_be_meant(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ApiError) as rejected:
        read_options("exec", request(*pairs))
    assert rejected.value.code == 400
