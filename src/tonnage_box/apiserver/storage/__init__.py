"""Storage of objects: versions, watch history and the SQLite file below them.

Called by the REST handlers and admission. It alone touches the state file.
"""
