"""Other people's programs: pytest, IPython and Jupyter, Lightning, transformers, accelerate.

Each module is loaded by the program that it is for, and is a few lines over what ``import torchledger`` offers.
"""
