"""What every pool shares: data types, records, parameters, reservations of capacity, threads, group commit.

Called by all pools. It has no disk format of its own except for the checksum of records.
"""
