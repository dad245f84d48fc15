"""What a simulation plays: streams of pods, their sizes, and when they come and go.

Called by the simulation. Pure: it reads a workload file's text, and draws from a seed.
"""
