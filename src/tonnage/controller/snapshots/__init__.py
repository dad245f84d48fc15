"""The snapshot controller: binds VolumeSnapshots to their contents, for every CSI driver.

Called by the controller and by the box. One module decides without I/O, one runs its actions through the API.
"""
