"""How controllers replace pods in a rolling update.

| question | module |
|---|---|
| how many pods are replaced at a time, and whether a rollout completes | `rollouts` |
| which claims two workloads hold | `held_claims` |

Imports: `policies.core`, `policies.kube`, `policies.probes`.
"""
