"""The kinds of objects: a folder for each group of the API, with all that is peculiar to its kinds.

Called by discovery and the server, which read the table in `groups`. A folder has the fields (schema.txt), their
protobuf numbers (numbers.txt), and as far as its kinds have them: defaults, validation, columns, strategy, warnings,
admission, and `rows` that join these. `shared` is what several groups use. No I/O, no state.
"""
