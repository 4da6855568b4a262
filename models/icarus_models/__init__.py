"""ICaRus in torch (reference and trainer), the specialists' data and evaluation, the catalog of bases and agents.

What imports torch loads when a command needs it: catalog, data, recipes and evaluation do without.
"""
