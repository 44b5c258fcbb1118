"""The programs that a pod's containers run, read once a review.

| question | module |
|---|---|
| what a container's commands do | `commands` |
| which programs it runs, with which options | `programs` |
| how our own checks run Python in any image | `commands` |
| which pods run no work of their own | `idle` |
| which containers are sidecars of others | `sidecars` |

Imports: `policies.commands`, `policies.core`, `policies.kube`.
"""
