"""The verbs of the box: up, down, demo, simulate, images; one file for each.

Called by `tonnage VERB`, which finds them by the entry points of tonnage-box. A verb parses its options and starts a
box or a simulation.
"""
