"""The model configs that pods ask for, and the mutator `model-puller`.

| question | module |
|---|---|
| when a pod gets the puller, and which it has already | `model_puller`, with `model_puller_settings` |
| which models it asks for | `pulling` |
| where they are mounted | `volumes` |

Imports: `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`, `puller`.
"""
