"""A throw-away kind of pool: what CONTRIBUTING's "Add a pool" asks for, and nothing else."""
