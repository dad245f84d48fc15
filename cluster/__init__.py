"""A real Kubernetes on this machine for tests and benchmarks: `python -m cluster up`, built from its Go modules."""
