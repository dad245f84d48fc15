"""Tools for people who run a cluster: doctor, why, inventory, orphans, manifests.

Called by the verbs of the command line. They read a cluster and a machine; only `orphans` and `pools` change
anything, and only when asked.
"""
