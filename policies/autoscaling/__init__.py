"""Autoscalers that add no pods, too many, or the wrong ones.

| question | module |
|---|---|
| which metrics does an autoscaler use, and what is known about them (`metrics.yaml`) | `metrics` |
| which workloads belong to an operator (`owners.yaml`) | `owners` |

Imports: `policies.accelerators`, `policies.core`, `policies.kube`, `policies.probes`, `policies.rollouts`.
"""
