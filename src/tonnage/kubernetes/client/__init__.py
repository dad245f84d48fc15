"""A client of any Kubernetes API server: requests, watches, informers, queues, Events, leases.

Called by the agent, the controller, the scheduler, the box and the tools. It alone opens connections to an API
server.
"""
