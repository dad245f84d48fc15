"""Composition roots: the parts put together into processes. No logic."""
