"""The network of model servers: meshes and Services.

| question | module |
|---|---|
| how long do gateways wait for an answer (`gateways.yaml`) | `gateways` |
| is a pod in a mesh, and when does its proxy run (`meshes.yaml`) | `rules`: `meshes` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`,
`policies.rollouts`.
"""
