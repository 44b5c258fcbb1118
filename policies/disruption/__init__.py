"""Evictions and node drains: drain times, and the mutator `disruption-guard`.

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.jobs`, `policies.kube`, `policies.probes`, `policies.rollouts`.
"""
