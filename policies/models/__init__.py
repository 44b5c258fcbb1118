"""The model configs that pods ask for, and the mutator `model-puller`.

| question | module |
|---|---|
| when a pod gets the puller | `model_puller`, with `model_puller_settings` |
| which models it asks for | `pulling` |
| where they are mounted | `volumes` |
| which puller it has already | `existing_puller` |

Imports: `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`, `puller`.
"""
