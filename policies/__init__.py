"""Rules and mutators as pure functions over JSON, without I/O, clock, HTTP or Kubernetes client.

Each subject has a folder, with its rules in `rules/`: a module for each, named by its id. A rule is in the
folder of what it must know besides the pods: whether a rollout completes needs the accelerators of nodes, a
quota, node selectors or only its own fields, so its rules are in four folders.

| question | module |
|---|---|
| what a rule and a mutator are, and what they read | `core`, over `kube`: Kubernetes' JSON |
| what commands and programs do | `commands`: as text; `containers`: of a pod |
| which server this is, and which probes it gets | `probes`; its other facts and their rules: `servers` |
| which GPUs pods ask for and nodes have | `accelerators` |
| which models are pulled | `models` |
| how training and batch jobs retry and end | `jobs` |
| how pods are replaced, evicted and drained | `rollouts`, `disruption` |
| how many pods there may be | `quotas`, `autoscaling` |
| what pods wait for while they start | `startup` |
| how requests reach pods | `network` |
| which objects must exist, or wait for each other | `relations` |
| which webhooks of others lock a cluster | `webhooks` |
| which names workers get | `worker_names` |

Imports: no other package of this repository.
"""
