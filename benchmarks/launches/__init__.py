"""What do single kernels of compiled graphs compute and take? Run alone (``bench``), watched (``values``), measured by
the thousand as data to fit, and priced: of models, of random programs, of ``flex_attention``, of atomics.
"""
