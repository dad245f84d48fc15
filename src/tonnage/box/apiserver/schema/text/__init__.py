"""The fields of every served kind, as plain text, one file for each group of kinds.

Read once, on first use, by the schema loader. Data only.
"""
