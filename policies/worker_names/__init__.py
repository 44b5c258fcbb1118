"""The names of Ray workers: how many workers a group may have, and the next name.

| question | module |
|---|---|
| which settings are there | `worker_names_settings` |
| how many workers a group wants and has | `workers` |
| which name a new one gets, or why none | `worker_names` |

Imports: `policies.core`, `policies.kube`.
"""
