"""Dependencies between objects: waits, probes, mounted objects, queues and nodes.

| question | module |
|---|---|
| on which hosts a workload depends, and what a watch cache stores of that | `links` |
| which objects a pod reads, and which keys these lack | `reads` |
| what it asks the API server for, and which rights its account has | `rights`, `bindings` |
| which pods Prometheus scrapes | `monitors` |
| who waits for whom | `wait_cycles` |
| in which order objects are deployed, and volumes bound | `order`, `late_claims` |
| whether there is room | `devices`, `node_pools`, `domains`, `cohorts`, `volcano_queues` |

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.jobs`, `policies.kube`, `policies.probes`, `policies.quotas`, `policies.rollouts`,
`policies.startup`.
"""
