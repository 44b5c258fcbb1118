"""The command `chassis`: one module for each subcommand.

Imports: `policies.accelerators`, `policies.containers`, `policies.core`, `policies.disruption`,
`policies.jobs`, `policies.kube`, `policies.models`, `policies.probes`, `policies.relations`,
`policies.rollouts`, `puller`, `webhook`, `webhook.admission`, `webhook.config`, `webhook.kube`,
`webhook.manifests`, `webhook.observed`, `webhook.server`.
"""
