"""What do single operators and library calls take, and how far are their prices off? The catalogue's sweeps, products,
convolutions and attention drawn by chance, and what eager programs call (``eager_calls``), timed on a GPU.
"""
