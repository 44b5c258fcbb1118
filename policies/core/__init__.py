"""The contracts of mutators and rules: modes, settings, facts, findings, workload kinds and the registry.

Imports: `policies`, `policies.kube`.
"""
