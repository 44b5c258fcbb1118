"""Other admission webhooks that may lock a cluster, whose configurations admission never sees.

| question | module |
|---|---|
| Does a webhook receive a request, or does a NetworkPolicy keep the API server from it? | `requests` |
| Without which requests does a cluster stop, and for how long may they wait? | `critical.yaml` |

Imports: `policies.core`, `policies.kube`.
"""
