"""What a piece of work should take on a machine, by arithmetic.

Enters: launches or operators at shapes, and a ``Machine``: a device's record, the rates that it reaches and the fitted
numbers of its generation (``generations/``). Leaves: expected times, and what regressors see of the work beside them.
Nothing here is learned of a device's own samples; that is the next room.
"""
