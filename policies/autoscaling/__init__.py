"""Autoscalers that add no pods, too many, or the wrong ones.

| question | module |
|---|---|
| which metrics does an autoscaler use, and what is known about them (`metrics.yaml`) | `metrics` |
| which workloads belong to an operator (`owners.yaml`) | `owners` |

Imports: `policies.core`, `policies.kube`; for GPUs and servers `policies.accelerators`, `policies.probes`.
"""
