"""How fast is an answer read, and how does it look? The page in a real browser and its pictures, ``show`` on large
ledgers, reading of large traces.
"""
