"""Containers: root file system, environment, process, logs and termination message.

Called by the pod workers. It starts and kills processes, and writes below the pod's folder only.
"""
