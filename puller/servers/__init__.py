"""Model servers: one class for each protocol, all alike to the reconciler.

Imports: `puller`.
"""
