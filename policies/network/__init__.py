"""The network of model servers: meshes and Services.

| question | module |
|---|---|
| is a pod in a mesh, and when does its proxy run (`meshes.yaml`) | `meshes` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`.
"""
