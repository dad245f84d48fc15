"""Discovery: which groups, versions and resources are served, and their OpenAPI documents.

Called by the server for `/api`, `/apis` and `/openapi`. It reads the registry and the schemas; it stores nothing.
"""
