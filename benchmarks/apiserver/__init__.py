"""The embedded API server: load, worst-case requests."""
