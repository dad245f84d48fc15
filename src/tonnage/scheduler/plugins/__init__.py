"""PreFilter, Filter, Score and Reserve plugins, named as kube-scheduler's.

The scheduling cycle calls them. They read the framework's data, and do no I/O.
"""
