"""Ranks' ledgers, or ranks' traces -> a Job: collectives matched over ranks, on one clock, with who waited for whom."""
