"""Does a recording hold what ran, and what does it cost? Graphs, kernels and whole steps on a CPU and on a GPU: their
entries, books and times beside independent counts, other profilers, and the program without a recording.
"""
