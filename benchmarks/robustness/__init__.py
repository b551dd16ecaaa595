"""Does it install, and stand up to what goes wrong? Faults of ours, full disks, kills, changed files, threads; versions
of torch and Python, packages, a newcomer's first minutes.
"""
