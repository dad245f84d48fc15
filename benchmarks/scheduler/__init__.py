"""Decisions of the scheduler in one process."""
