"""Does it agree with what others published? Operators, steps, logs, traces and scripts of public repositories, with
nothing fitted to them; ``library_scripts`` train with libraries as these say that one does.
"""
