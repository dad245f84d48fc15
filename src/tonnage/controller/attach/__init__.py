"""Attaches volumes of CSI drivers with attachRequired, in place of external-attacher, and publishes shared capacity.

Called by the controller and by the box, for the drivers whose sockets they are given. One module decides without I/O,
one runs its actions through the API and the driver.
"""
