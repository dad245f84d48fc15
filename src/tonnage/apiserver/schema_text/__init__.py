"""The fields of every served kind, as plain text that schemas.py reads."""
