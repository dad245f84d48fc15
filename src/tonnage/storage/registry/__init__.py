"""Images from registries (OCI distribution-spec), pulled into an image store.

Called by `tonnage images pull` and by the inline driver `image`. Only registries that the options list are asked, and
nothing enters a store whose digest and size were not checked.
"""
