"""The command line, and what its verbs find out about a cluster and a machine.

Called by people. It may use everything below; nothing imports it.
"""
