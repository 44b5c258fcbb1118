"""Model servers, their health endpoints and start times, and the mutator `standard-probes`.

Start with three modules: `preset` is the model of a preset (data in `policies/servers/`), `recognition`
matches a container with a preset, and `standard_probes` injects the probes.

| question | module |
|---|---|
| which settings are there | `standard_probes_settings` |
| how a container is matched with a preset | `recognition`, over `preset` and `server_facts` |
| which probes are added | `standard_probes`, which also tells whether a written probe is one of them |
| how the reason of a probe is said | `probe_fields` |
| which containers of a pod serve | `serving` |
| on which port and paths a recognised server answers | `endpoints` |
| which handlers liveness and readiness get | `health`: from annotations, the preset, or the readinessProbe |
| which models a container loads, and how large they are | `declared_models`, by `model_sizes` |
| how long a start takes | `startup_budget`: from `observed` starts, or from `declared_models` |
| whether a user's own check may be copied | `copied` |
| how a program checks progress | `liveness_program`; by annotation: `canary`, `training_progress` |
| which warnings the mutator gives | `advice` |
| what rules share | `probe`, `heavy_commands`, `first_party` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `puller`.
"""
