"""What every program needs: errors, options, asyncio, logs and metrics.

Called by everything. Nothing here knows Kubernetes or CSI.
"""
