"""The LVM pool: volumes are logical volumes, thick or thin, with their records in tags.

Called through the Pool. It runs LVM's tools on one volume group.
"""
