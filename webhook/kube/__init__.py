"""Reads and writes of an API server.

| question | module |
|---|---|
| how the API server is called | `api`, with `paths` and `calls` |
| how facts are kept up to date, and which kubelet is the oldest | `caches`, from `reflector` |
| which kinds a cluster has, and which of them may be listed | `discovery` |
| who leads | `leader_election`; renewals: `times` |
| which pod this is | `own_pod` |
| how Events are written | `events` |

What it may read stands in `manifests/base/rbac.yaml`, by the table of resources in `policies.core`.

Imports: `policies.core`, `policies.kube`, `policies.probes`, `policies.relations`, `webhook`.
"""
