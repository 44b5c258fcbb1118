"""Accelerators: vendors, node inventories, placement, and the mutator `gpu-affinity`.

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`,
`policies.rollouts`.
"""
