"""The endpoint `/name`, with allocation records in Leases.

| question | module |
|---|---|
| how a name is given | `endpoint`; the subject of the same name in policies decides |
| what is read and written, and where the Leases are | `cluster` |

Imports: `policies.core`, `policies.kube`, `policies.worker_names`, `webhook.admission`, `webhook.kube`.
"""
