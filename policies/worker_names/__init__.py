"""The names of Ray workers: how many workers a group may have, and the next name.

Imports: `policies.core`, `policies.kube`.
"""
