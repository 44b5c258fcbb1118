"""How objects depend on each other: who waits for whom, who asks whom, what a failure takes down.

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.kube`, `policies.quotas`, `policies.rollouts`, `policies.startup`.
"""
