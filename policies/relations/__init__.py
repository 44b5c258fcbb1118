"""Dependencies between objects: waits, probes, mounted objects, queues, nodes, and the graph of them.

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.kube`, `policies.quotas`, `policies.rollouts`, `policies.startup`.
"""
