"""The words of Kubernetes, typed. No I/O."""
