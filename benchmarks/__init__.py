"""Figures that tonnage claims, measured. `python -m benchmarks` prints them."""
