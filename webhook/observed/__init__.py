"""What the leader learns from pods: starts and ends go into a ConfigMap that all replicas read, models that
fail into Events.

Imports: `policies.core`, `policies.jobs`, `policies.kube`, `policies.models`, `policies.probes`,
`webhook.admission`, `webhook.kube`.
"""
