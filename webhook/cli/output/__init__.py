"""The formats of `--output`, one module each.

Reviews are read and released one by one, so that a cluster does not have to fit in memory.
"""
