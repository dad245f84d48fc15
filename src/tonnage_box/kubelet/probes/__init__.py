"""Probes and lifecycle hooks of containers: their states, their schedule, and what they run or ask.

Called by the containers of a pod. It runs commands in containers through the runtime and connects to local ports.
"""
