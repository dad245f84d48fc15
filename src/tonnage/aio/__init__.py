"""The asyncio kit: time, back-off and tasks. Knows nothing of storage or Kubernetes."""
