"""Manifests: their text, their objects, and these as the facts of a cluster.

| question | module |
|---|---|
| which files are read | `files` |
| which directories kustomize or Helm must build first, and which objects patches change | `rendered` |
| which fields an API server does not know | `api_fields` |
| how their objects replace a cluster | `cluster` |
| which objects of other files count for a file, and which are kept apart | `nearest` |
| what a cluster is after manifests are applied | `overlaid` |
| on which lines a field is | `positions` |

Imports: `policies.core`, `policies.kube`, `policies.probes`, `policies.relations`, `webhook`,
`webhook.admission`.
"""
