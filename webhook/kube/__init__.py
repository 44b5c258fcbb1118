"""Reads and writes of an API server.

| question | module |
|---|---|
| how the API server is called | `api`, with `paths`, `calls` and `rate_limit`; its JSON: `answers` |
| how facts are kept up to date | `caches`, from `reflector` |
| which kinds a cluster has, and which of them may be listed | `discovery` |
| who leads | `leader_election`; renewals: `times` |
| which pod this is | `own_pod` |
| which the kubelet is the oldest | `oldest_kubelet` |
| how Events are written | `events` |

What it may read stands in `manifests/base/rbac.yaml`, by the table of resources in `policies.core`.

Imports: `policies.core`, `policies.kube`, `policies.probes`, `policies.relations`, `webhook`.
"""
