"""A running program becomes steps.

In: calls of compiled graphs, steps of optimizers, ``torchledger.step()``. Out: where each step ends and which steps are
alike, and a ``StepRecording`` of some of them: their times without a profiler, and traces of them under one.
"""
