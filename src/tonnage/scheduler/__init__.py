"""Which node a pod goes to, volumes included."""
