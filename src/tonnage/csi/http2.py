"""grpclib's HTTP/2 with what it lacks towards callers that say something strange."""

from __future__ import annotations

import logging
from asyncio import BaseTransport, Transport
from typing import Any, cast

from grpclib.protocol import H2Protocol
from h2.events import AlternativeServiceAvailable, UnknownFrameReceived

from tonnage.csi.corked import Corked

log = logging.getLogger(__name__)


class ServerProtocol(H2Protocol):
    """One connection. Frames of an unknown kind are ignored, as RFC 9113 (4.1) wants it; who does not speak HTTP/2
    loses the connection and nothing else."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(cast(BaseTransport, Corked(cast(Transport, transport))))
        for event in (UnknownFrameReceived, AlternativeServiceAvailable):
            self.processor.processors[event] = _ignore

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            super().data_received(data)
        except Exception as failure:
            log.info("connection closed, not HTTP/2 error=%r", failure)
            self.processor.close("Protocol error")


class ClientProtocol(H2Protocol):
    """The caller's side of one connection."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(cast(BaseTransport, Corked(cast(Transport, transport))))


def _ignore(_event: Any) -> None:
    """Nothing follows from it."""
