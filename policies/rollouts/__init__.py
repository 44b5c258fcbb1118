"""The arithmetic of rolling updates.

Imports: `policies.core`, `policies.kube`, `policies.probes`.
"""
