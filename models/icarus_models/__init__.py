"""ICaRus in torch: the reference, the trainer, the data of the shipped agents, and the catalog of bases and agents.

Only `reference`, `base`, `trainer` and `training` import torch; `catalog` and `data` do not.
"""
