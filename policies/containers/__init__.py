"""The programs that a pod's containers run, read once a review.

Imports: `policies.commands`, `policies.core`, `policies.kube`.
"""
