"""A step under the profiler becomes times given to the ledger's entries."""
