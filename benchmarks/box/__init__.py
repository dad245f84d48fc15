"""A box in one process: start, bursts of pods, rest."""
