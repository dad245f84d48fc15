"""What stands in for a cluster in a simulation: nodes, agents, kubelets, scheduler, virtual time.

Called by the simulation. In memory only; with `--full` the real controllers and API server run in it.
"""
