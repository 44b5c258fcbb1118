"""The leader's observations of pods: starts and ends in a ConfigMap that all replicas read, and Events about
models that fail.

Imports: `policies.core`, `policies.jobs`, `policies.kube`, `policies.models`, `policies.probes`,
`webhook.admission`, `webhook.kube`.
"""
