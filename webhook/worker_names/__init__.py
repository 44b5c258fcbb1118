"""The endpoint `/name`, with allocation records in Leases.

Imports: `policies.core`, `policies.kube`, `policies.worker_names`, `webhook.admission`, `webhook.kube`.
"""
