"""Reads and writes of an API server, and manifests in place of one.

Imports: `policies.core`, `policies.kube`, `policies.probes`, `policies.relations`, `webhook`.
"""
