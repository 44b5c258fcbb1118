"""The command `chassis`: one module for each subcommand.

| question | module |
|---|---|
| which commands there are | `main`; each has a module of its name |
| what a command reads | `inputs`, `named_policy`, `connection`, `cluster_facts` |
| how objects are reviewed | `reviewed`, `cluster_reviews` |
| how texts are printed | `output`, `terminal` |
| how manifests are edited | `fix`, `text_edits` |
| who set a field, and how to change it | `why`, `provenance`, `kubectl` |
| which flags and exit statuses commands share | `flags` |

Imports: `policies.accelerators`, `policies.containers`, `policies.core`, `policies.disruption`,
`policies.jobs`, `policies.kube`, `policies.models`, `policies.probes`, `policies.relations`,
`policies.rollouts`, `puller`, `webhook`, `webhook.admission`, `webhook.config`, `webhook.kube`,
`webhook.manifests`, `webhook.observed`, `webhook.server`.
"""
