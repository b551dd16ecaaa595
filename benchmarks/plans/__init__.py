"""Does a plan made without a GPU say what a recording on one does? Launches, FLOPs, steps, collectives and ranks of the
same programs, operator by operator what is planned, and what a plan itself costs.
"""
