"""Workload of a simulation: streams of pods, their sizes, and when they arrive and end.

Called by the simulation. Pure: it reads a workload file's text, and draws from a seed.
"""
