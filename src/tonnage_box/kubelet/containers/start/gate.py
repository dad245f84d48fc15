"""Gate at which the start of a container waits: its root is made by bwrap, but not complete yet.

The program that starts the command says that it is there, and goes on when it hears that the root is complete. A
kubelet that ends before leaves no container behind. Blocking.
"""

from __future__ import annotations

import socket

from tonnage.base.errors import HostError

_SECONDS = 60.0


class Gate:
    """Two ends of a socket, closed by close() or at the end of a `with`.

    theirs: the descriptor that the container's first program inherits.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self.theirs = self._theirs.fileno()
        self._ours.settimeout(_SECONDS)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def reached(self) -> bool:
        """Wait until the root is made; False where its making has failed. Raises: HostError (it takes too long)."""
        self._theirs.close()
        try:
            return bool(self._ours.recv(1))
        except TimeoutError as failure:
            raise HostError(
                f"bwrap: it made no root within {_SECONDS:g} s; look at the load of this machine"
            ) from failure

    def open(self) -> None:
        """Let the command start. Raises: OSError."""
        self._ours.send(b"\n")

    def close(self) -> None:
        """End what still waits. Idempotent."""
        self._theirs.close()
        self._ours.close()
