"""The leader's observations of pods: starts and ends in a ConfigMap that all replicas read, and Events about
models that fail.

| question | module |
|---|---|
| what the leader watches | `collector` |
| what a pod's status says about starts and ends | `pods` |
| what is kept | `record` |
| which models fail, and how many requests and writes that may cost | `model_events`, from `status_pages` |
| whether liveness notices a hang | `hangs` |
| which probes and limits fit | `tuning` |

Imports: `policies.core`, `policies.kube`, `policies.models`, `policies.probes`, `webhook`,
`webhook.admission`, `webhook.kube`.
"""
