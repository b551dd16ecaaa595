"""Eager calls that a seed draws, by what makes them alike: for ``eager_strangers_cuda.py``, which records them."""
