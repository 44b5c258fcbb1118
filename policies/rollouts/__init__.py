"""How controllers replace pods in a rolling update.

Imports: `policies.core`, `policies.kube`, `policies.probes`.
"""
