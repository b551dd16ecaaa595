"""Timing operators over sweeps of shapes.

Enters: a sweep (the guide's YAML or the native form), a device. Leaves: ``Sample`` records, journaled as they are made
and compacted to Parquet, each once, with the reasons for those that are missing.
"""
