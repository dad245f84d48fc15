"""Where pods and their volumes are placed, on real control planes."""
