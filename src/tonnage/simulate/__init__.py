"""The simulator: the real scheduler, capacity model and ledger on a virtual clock."""
