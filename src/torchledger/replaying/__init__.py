"""A launch out of its ledger, run alone: bench, extract, and the reference that it is compared with."""
