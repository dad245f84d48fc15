"""What the workload controllers share: their context, owner references, expectations, templates, revisions.

Called by the workload controllers. It creates, adopts and deletes pods through the API.
"""
