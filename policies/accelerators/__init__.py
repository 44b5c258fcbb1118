"""Accelerators: vendors, node inventories, placement, and the mutator `gpu-affinity`.

| question | module |
|---|---|
| which settings are there | `gpu_affinity_settings` |
| what pods request, and what nodes offer | `requests`; `inventory`, by the `catalogue` of vendors and pools |
| by which labels nodes are recognised, and how much memory one accelerator has | `vendors` |
| which nodes can take a pod | `placement` |
| whether a model fits | `fit`, `parallelism` |
| which images use GPUs without a request, and which pods may | `unrequested` |
| what the annotations mean | `annotations` |
| how much memory the products and machines have that a pod asks for by a label | `products` |
| which resources and products are slices (MIG, time-slicing) | `slices` |
| how many ranks a container starts | `rank_launchers` |
| how large a container's /dev/shm is | `shared_memory` |
| which fields are added | `gpu_affinity`, with `node_affinity` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`,
`policies.rollouts`.
"""
