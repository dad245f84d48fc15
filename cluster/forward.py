"""The Service `kubernetes` without kube-proxy: passes connections to its address on to the API server.

`python forward.py ADDRESS PORT TARGET TARGET_PORT`. Pods reach the address, which is one of this machine's own, through
their bridge: no rule of a firewall and no setting of the machine is changed for it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

_AT_ONCE = 2**16


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(_AT_ONCE):
            writer.write(content)
            await writer.drain()
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


async def serve(address: str, port: int, target: str, target_port: int) -> None:
    """Until cancelled. A target that does not answer closes the connection, as a server that is down would."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(target, target_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))

    server = await asyncio.start_server(connected, address, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
