"""tonnage: node-local storage for Kubernetes. docs/architecture.md describes the code."""

__version__ = "0.1.0"
