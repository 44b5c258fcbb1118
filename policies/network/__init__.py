"""The network of model servers: meshes and Services.

| question | module |
|---|---|
| how long do gateways wait for an answer (`gateways.yaml`) | `gateways` |
| is a pod in a mesh, and when does its proxy run (`meshes.yaml`) | `rules`: `meshes` |
| does a route lead to pods, and for how long | `rules`: `routes`, `route_never_attached` |
| to which pods does a Service send requests | `rules`: `service_selects_workers`, `service_mixes_models` |
| whom does an AuthorizationPolicy of Istio let use a Service | `authorization` |
| whom does a CiliumNetworkPolicy admit | `cilium` |
| what does a NetworkPolicy block | `rules`: `network_policy_wrong_port` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`,
`policies.rollouts`.
"""
