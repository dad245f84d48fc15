"""One control loop, one file. Each reads caches and may be repeated at any time."""
