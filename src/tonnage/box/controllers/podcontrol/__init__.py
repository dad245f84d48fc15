"""What the workload controllers share: owner references, expectations, templates, revisions.

Called by the workload controllers. It creates, adopts and deletes pods through the API.
"""
