"""What `chassis review` and `chassis scan` print; a module for each format of `--output`.

Law: reviews are taken one by one and let go, so that a cluster need not fit in memory.
"""
