"""The command `chassis`: one module for each subcommand.

Imports: `policies.accelerators`, `policies.core`, `policies.jobs`, `policies.kube`, `policies.probes`,
`policies.relations`, `webhook`, `webhook.admission`, `webhook.config`, `webhook.kube`, `webhook.observed`,
`webhook.server`.
"""
