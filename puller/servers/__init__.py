"""Model servers: one class for each protocol, with one interface for the reconciler.

Imports: `puller`.
"""
