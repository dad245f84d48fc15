"""Simulated cluster: nodes, agents, kubelets, scheduler and virtual time.

Called by the simulation. In memory only; with `--full` the real controllers and API server run in it.
"""
