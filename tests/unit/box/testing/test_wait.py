"""Waiting in tests."""

from __future__ import annotations

import pytest

from tonnage_box.testing.wait import eventually


async def test_it_asks_until_the_answer_is_true_and_returns_it() -> None:
    answers = iter(["", "", "found"])

    async def ask() -> str:
        return next(answers)

    assert await eventually(ask) == "found"


async def test_what_never_holds_ends_with_an_error() -> None:
    async def ask() -> bool:
        return False

    with pytest.raises(TimeoutError):
        await eventually(ask, limit=0.01)
