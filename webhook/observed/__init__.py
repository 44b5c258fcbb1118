"""How starts and ends of containers went: recorded by one replica, read by all, written to one ConfigMap.

Imports: `policies.core`, `policies.jobs`, `policies.kube`, `policies.probes`, `webhook.admission`,
`webhook.kube`.
"""
