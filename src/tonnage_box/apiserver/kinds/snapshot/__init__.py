"""snapshot.storage.k8s.io and groupsnapshot.storage.k8s.io: snapshots, their contents and classes.

Called through its rows; the generator of their definitions reads its messages. Pure.
"""
