"""Container images: a store in a folder, filled from OCI layouts and from archives of `docker save`.

Called by `tonnage images`, and by the box's kubelet for containers and image volumes. It unpacks hostile layers without
leaving their folder, and touches nothing outside of the store; mounts are made by its callers.
"""
