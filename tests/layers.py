"""Layers of the virtual environment without which `make test` runs: their tests are skipped, and the reason says how."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs_layer(layer: str, module: str) -> pytest.MarkDecorator:
    """Skip where the layer (constraints/LAYER.txt) is not installed, which the module is part of."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed: make setup-{layer}")
