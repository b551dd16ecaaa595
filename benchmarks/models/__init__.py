"""How do the shipped models learn, and what does each idea buy? What fits their parts to data and writes them, how far
they are off on what is held out, and how quick they answer.
"""
