"""Installation on Kubernetes: the objects that `tonnage manifests` prints and the chart holds.

Called by the verb and by the script that writes the chart. It reads the templates in `templates/` and writes text.
"""
