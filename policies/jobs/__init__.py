"""Jobs: their retries, their sidecars, and the mutator `job-retries`.

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.kube`, `policies.probes`.
"""
