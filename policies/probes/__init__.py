"""Model servers, their health endpoints and start times, and the mutator `standard-probes`.

Three modules in a row: `preset` has the facts about each server (data in `presets/`), `recognition` matches a
container with one, and `standard_probes` injects the probes that follow.

| question | module |
|---|---|
| who serves | `serving` |
| what administrators set | `settings` |
| where a known server answers | `endpoints` |
| what liveness and readiness ask | `health`: annotations, the preset, the own readinessProbe |
| how long it starts | `start`: from `observed` starts, or from `model_sizes` |
| does a program notice hangs | `progress` |
| can a group of pods form | `group_formation` |
| whose server is it | `own_servers` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `puller`.
"""
