"""The model configs that pods ask for, and the mutator `model-puller`.

Imports: `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`, `puller`.
"""
