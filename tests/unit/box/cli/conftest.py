"""The command line in this process."""

from __future__ import annotations

from tests.command_line import logging_as_before, tonnage  # noqa: F401
