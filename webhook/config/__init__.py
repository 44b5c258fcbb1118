"""The policy: from text to an immutable configuration, and its sources.

| question | module |
|---|---|
| where the policy comes from | `source` in a server, `location` in a command |
| how its text becomes a configuration, without removed settings | `load` |
| which keys the two ConfigMaps have, and whose settings win | `config_maps` |
| what is said about the webhook's own policy | `policy_config_invalid` |

Imports: `policies.core`, `policies.kube`, `puller`, `webhook`, `webhook.admission`, `webhook.kube`,
`webhook.manifests`.
"""
