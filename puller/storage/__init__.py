"""Storage: from a URI to a complete, verified tree of files.

Imports: `puller`.
"""
