"""What only a server or a kubelet knows of the Kubernetes API: patches, schedules, fields of pods, remote commands.

And waiting for a state of objects, for programs that follow a story.
"""
