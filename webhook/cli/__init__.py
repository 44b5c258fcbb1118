"""The command `chassis`: one module for each subcommand.

| question | module |
|---|---|
| which commands there are | `main`; each has a module of its name |
| which examples `--help` shows | `examples` |
| what a command reads | `inputs`, `named_policy`, `connection`, `cluster_facts` |
| how objects are reviewed | `reviewed`, with the objects that a finding names; `cluster_reviews` |
| how the views of `scan` are made | `missed`, with `repair`; `servers`, `pulled_models` |
| how `policy diff` and `policy test` work | `policy_diff`, `policy_test` |
| what `explain` prints about kinds and servers | `known_kinds`; `server_pages`, with `server_manifest` |
| how settings are described | `settings_in_words` |
| what depends on what in a set or a cluster | `object_graph` |
| how texts are printed | `output`, `terminal` |
| how manifests are edited | `fix`, `text_edits` |
| who set a field, and how to change it | `why`, `provenance`, `owners`, `kubectl` |
| which flags and exit statuses commands share | `flags`; which one a review ends with: `output.show` |

Imports: `policies.containers`, `policies.core`, `policies.disruption`,
`policies.jobs`, `policies.kube`, `policies.models`, `policies.probes`, `policies.relations`,
`policies.rollouts`, `puller`, `webhook`, `webhook.admission`, `webhook.config`, `webhook.kube`,
`webhook.manifests`, `webhook.observed`, `webhook.server`.
"""
