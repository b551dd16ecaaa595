"""Launches in, times out: profile a whole step, bench one kernel, read a trace that somebody else recorded.

What enters is a ledger's launches, or a Kineto trace; what leaves is ``Measurement`` records and a ``Breakdown``.
"""
