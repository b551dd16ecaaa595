"""A new device in ten minutes: what to measure, the measuring, and a model that starts from those there are.

A device goes in; its record with ceilings, its host, samples and launches come out, and a model of times.
"""
