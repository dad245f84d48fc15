"""Discovery: which groups, versions and resources are served, and their OpenAPI documents.

Called by the server for `/api`, `/apis` and `/openapi`. It reads the rows of all kinds and the
schemas; it stores nothing.
"""
