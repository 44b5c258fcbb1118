"""The programs that a pod's containers run, read once a review.

| question | module |
|---|---|
| what a container's commands do | `commands` |
| which programs it runs, with which options, and whether they only idle | `programs` |
| how our own checks run Python in any image | `commands` |
| which containers are sidecars of others | `sidecars` |

Imports: `policies.commands`, `policies.core`, `policies.kube`.
"""
