"""Waits in init containers and entrypoints.

| question | module |
|---|---|
| what a pod waits for before it is ready | `waits` |
| whether it waits for pods of its own workload | `peers` |
| which programs a known image lacks | `missing_programs` |

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.kube`, `policies.probes`.
"""
