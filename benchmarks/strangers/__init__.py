"""How far are prices of programs off that nobody chose? Programs drawn by chance and scripts as people write them
(``stranger_scripts``, ``feature_scripts``), measured on one GPU and predicted, also for devices that learned of others.
"""
