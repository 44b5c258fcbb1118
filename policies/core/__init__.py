"""The contracts of mutators and rules: modes, settings, facts, findings, workload kinds and the registry.

| question | module |
|---|---|
| what a rule and a mutator are | `contracts`; `registry` finds them and knows the removed ones |
| what a rule reads of the object | `target`, `pod_view`, whose features decide whether it is called |
| where an object has its pod templates | `pod_templates` |
| which object completes the pods of another, as their base | `pod_bases`, `kserve`, `trainer` |
| which serving runtimes KServe installs | `serving_runtimes.yaml` |
| what operators add to pods | `ray_pods`, `seldon`; variables: `workloads.yaml` |
| what a rule reads of the cluster | `facts`, `listing`, `resources` |
| what it reports | `finding`, with its mode |
| why a field is added | `reasons` |
| what can be set | `settings`, `annotations`; `pydantic_models` checks what users write |
| how a kind's pods start and end | `lifecycles`, with which `runs` reads objects |
| which kinds have pods, and where | `workloads`, `composing`; the rest: `builtin_kinds.yaml` |
| how tables of facts are loaded | `data` |
| where stores keep their data, and whether a volume follows its pod | `data_directories`, `volumes` |
| which pods belong together | `groups`, `services`, `dns` |
| which policies of the network there are | `network_policies` |
| which nodes a cloud takes back | `spot_nodes` |
| which workload an autoscaler scales | `autoscalers` |
| which queue a workload names or should name | `queues` |

Imports: `policies`, `policies.kube`.
"""
