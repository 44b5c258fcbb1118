"""Kubernetes objects as types: the fields that policies and rules read, and no others.

| question | module |
|---|---|
| How is JSON converted, and what happens to a value of a wrong type? | `reading` |
| The base classes of all types; names, labels, owners, selectors | `metadata` |
| Pods: containers, probes, volumes, scheduling | `pods` |
| Affinity, tolerations, topology spread | `placement` |
| Deployments, StatefulSets, DaemonSets, LeaderWorkerSets, Rollouts | `workloads` |
| Jobs, CronJobs, JobSets | `jobs` |
| Services, Ingresses, HTTPRoutes, monitors of the Prometheus operator | `services` |
| NetworkPolicies | `network_policies` |
| Autoscalers and disruption budgets | `scaling` |
| Nodes, Karpenter's NodePools, and the nodes that a pod selects | `nodes` |
| Volumes, claims, StorageClasses, ConfigMaps | `storage` |
| Namespaces, quotas, LimitRanges, PriorityClasses | `limits` |
| Devices of DRA | `devices` |
| Kueue's queues | `queues` |
| Configurations of admission webhooks | `webhooks` |
| Roles and their bindings | `rbac` |
| Ray | `ray` |
| Which type has which kind? | `kinds` |

Law: JSON is what is changed and what keeps unknown fields. An object of a type is only read, and is made
again after a change.
"""
