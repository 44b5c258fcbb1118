"""Reading and copying Kubernetes JSON: metadata, pods, field paths, names, quantities and probe timing.

| question | module |
|---|---|
| which fields an object has | `objects` |
| how JSON is read and edited | `json`, `metadata`, `group_kinds`, `field_paths` |
| which containers a pod has | `pods` |
| which nodes a pod admits (selector, affinity, tolerations) | `scheduling` |
| whether Karpenter can create a node for a pod | `node_pools` |
| how texts are parsed | `quantities`, `images`, `names`; YAML and JSON: `yaml_text` |
| what is computed once | `cache` |

Imports: `puller`.
"""
