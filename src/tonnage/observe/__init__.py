"""What the processes tell about themselves: logs and metrics."""
