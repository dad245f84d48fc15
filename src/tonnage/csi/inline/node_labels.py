"""Source that shows a pod the labels of its node, a file for each. An example of an inline driver.

Used with `--inline node-labels`. The files are the labels that the API server had at the last fill, at most a minute
ago while it answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.base import AttributeRule, Files, FillRequest, SourceNeeds
from tonnage.host.atomic_writer import Content
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.client.client import Client

EVERY = 60.0
"""Seconds between two fills."""


class NodeLabelSource:
    """Shows the labels of one node."""

    attributes: Mapping[str, AttributeRule] = {"prefix": AttributeRule()}
    needs = SourceNeeds(read_only=True, files=256)

    def __init__(self, node: str, client: Client | None, clock: Clock) -> None:
        self._node, self._client, self._clock = node, client, clock

    async def fill(self, request: FillRequest) -> Files:
        """Return a file for each label whose key begins with the attribute `prefix`. Raises: UnavailableError."""
        if self._client is None:
            raise UnavailableError(f"node {self._node}: there is no API server to ask for its labels")
        labels = (await self._client.get(NODES, self._node)).metadata.labels
        prefix = request.attributes.get("prefix", "")
        found = {key.replace("/", "_"): value for key, value in labels.items() if key.startswith(prefix)}
        content = {key: Content(value.encode()) for key, value in sorted(found.items())}
        return Files(content, again=self._clock.time() + EVERY)
