"""The PersistentVolume controller: binds claims to volumes, and reclaims released volumes.

Called by the box. It writes claims and PersistentVolumes through the API (KEP-1979,
pkg/controller/volume/persistentvolume).
"""
