"""Growth, snapshots, restores and clones: API writes and time, beside upstream's sidecars and bare commands."""
