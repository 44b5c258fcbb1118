"""Evictions and node drains: drain times, and the mutator `disruption-guard`.

| question | module |
|---|---|
| which fields are added | `disruption_guard`, by `disruption_guard_settings` |
| how a server ends | `drains` |
| which budgets select a pod | `budgets` |
| who keeps state | `single_state` |

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.jobs`, `policies.kube`, `policies.probes`, `policies.rollouts`.
"""
