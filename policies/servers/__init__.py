"""Model servers: the facts about each (`<name>.yaml`), and the rules that read those besides its probes.

| question | module |
|---|---|
| which fields does a file have | `policies.probes.preset`, and `policies.probes.life` for these rules |
| where does a server store its models, and which volume is there | `caches` |

Imports: `policies.accelerators`, `policies.core`, `policies.kube`, `policies.probes`, `policies.rollouts`.
"""
