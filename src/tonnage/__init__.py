"""tonnage: node-local storage for Kubernetes. The house is described in docs/design.md."""

__version__ = "0.1.0"
