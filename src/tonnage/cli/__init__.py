"""The command line: one file for each verb.

Called as `tonnage VERB` and as `python -m tonnage.cli`. A verb parses its options, starts one of the programs, and
turns errors into exit codes.
"""
