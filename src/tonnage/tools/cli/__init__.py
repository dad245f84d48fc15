"""The command line: one file for each verb but those of the box.

Called as `tonnage VERB` and as `python -m tonnage`. A verb parses its options, starts one of the programs, and
turns errors into exit codes.
"""
