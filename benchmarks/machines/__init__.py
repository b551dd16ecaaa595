"""What do the host, the clocks and the power limit do to a step? Hosts by part of a step, by core and by moment, by
operator and framework; clocks and watts over kernels, collectives and steps that last.
"""
