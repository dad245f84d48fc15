"""`tonnage doctor`: looks at an installation on Kubernetes and says what is wrong with it, and what to do.

view.py reads the cluster once; each other file holds one group of checks over it. Only access.py, scoping.py (a trial
write that is not kept) and machine.py ask further. Nothing is changed anywhere.
"""
