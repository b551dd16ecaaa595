"""From launches to what they computed.

Enters: the generated wrapper of each compiled graph as it is loaded, and the ``Launch`` entries that capturing made of
it. Leaves: ``ValueStats``, ``ValueFinding``, ``ValueComparison`` and ``WatchedGraph`` records in the same ledger, and
saved tensors beside it.
"""
