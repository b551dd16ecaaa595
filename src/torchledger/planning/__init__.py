"""A program without its devices: the steps of its ranks and a fabric enter, the price of its timeline leaves.

``fabric`` prices collectives, ``timeline`` plays entries of ranks on their streams, ``price`` makes entries of recorded
steps, ``transformer`` of a model's sizes, and ``layouts`` ranks the ways to spread one over a world.
"""
