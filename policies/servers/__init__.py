"""Model servers: the facts about each (`<name>.yaml`), and the rules that read those besides its probes.

The fields of a file are in `policies/probes/preset.py`; those for these rules are in
`policies/probes/server_facts.py`.

| question | module |
|---|---|
| where does a server store its models, and which volume is there | `caches` |

Imports: `policies.accelerators`, `policies.commands`, `policies.containers`, `policies.core`,
`policies.kube`, `policies.probes`, `policies.startup`.
"""
