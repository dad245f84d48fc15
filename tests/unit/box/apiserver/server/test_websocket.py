"""WebSockets of exec and attach: subprotocols, channels, limits and malformed frames, with a real client."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.box.apiserver.server.conftest import Box, box_of

from tonnage.api.remote_command import STDOUT, Session, StreamOptions, Streams
from tonnage.box.apiserver.server import websocket
from tonnage.errors import ApiError, UnsupportedError

POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
PODS = "/api/v1/namespaces/default/pods"
EXEC = f"{PODS}/p/exec"
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
