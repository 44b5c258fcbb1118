"""Autoscalers that add no pods, too many, or the wrong ones.

| question | module |
|---|---|
| which metrics does an autoscaler use, and what is known about them (`metrics.yaml`) | `metrics` |
| which workloads belong to an operator (`owners.yaml`) | `rules`: `autoscaler_of_owned_object` |
| which queues do autoscalers watch (`queues.yaml`) | `rules`: `autoscaler_ends_tasks` |

Imports: `policies.accelerators`, `policies.core`, `policies.kube`, `policies.probes`, `policies.rollouts`.
"""
