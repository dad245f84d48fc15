"""The static pool: each volume is a whole disk that the configuration names.

Called through the Pool. It formats, mounts and erases those disks only, and rejects any that has foreign
content.
"""
