"""Printers: tables for `kubectl get`, and cells that several groups of kinds have (pkg/printers).

Called by the columns of the groups, and by the handlers, which print. Pure functions of objects.
"""
