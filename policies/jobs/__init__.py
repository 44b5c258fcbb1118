"""Jobs: their retries, their sidecars, and the mutator `job-retries`.

| question | module |
|---|---|
| which settings are there | `job_retries_settings` |
| how Jobs handle failures | `jobs` |
| how long it is between two runs of a CronJob | `schedules` |
| which claims a task of Tekton mounts | `tekton_claims` |
| which fields are added | `job_retries`, `termination_messages` |
| which containers train, and which never end | `training`, `rules`: `endless_containers` |

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.kube`, `policies.probes`.
"""
