"""What do several ranks take, and do their ledgers say so? Jobs of gloo processes and of GPUs, by strategy and as
people write them (``stranger_jobs``), stragglers, collectives beside kernels, jobs played again from their parts.
"""
