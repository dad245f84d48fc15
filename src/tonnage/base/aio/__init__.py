"""Parts for asyncio: clocks, back-off and supervised tasks.

Used by all layers. No I/O, no knowledge of storage or Kubernetes.
"""
