"""What only a server or a kubelet knows of the Kubernetes API: patches, schedules, fields of pods, remote commands.

Called by the API server, the controllers and the kubelet of the box. Pure, but for waiting for a state of objects,
which programs do that tell a story.
"""
