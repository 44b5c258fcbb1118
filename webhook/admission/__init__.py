"""The decision about one review, without HTTP and without a cluster.

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`.
"""
