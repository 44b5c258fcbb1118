"""The sidecar: keeps the models of a pod equal to a ConfigMap.

Start with three modules: `model_config` is what a user writes, `plan` decides the next step of one model from
its whole state, and `reconcile` is the loop that takes these steps.

| question | module |
|---|---|
| which fields a model may have, and why an entry is refused | `model_config` |
| how the mounted ConfigMap is read and watched | `config`, over `mounted` |
| which step a model needs next | `plan` |
| who runs the steps, how many at a time, when again | `reconcile` |
| what a step does | `actions` |
| how models lie on the disk: markers, swaps, leftovers | `store` |
| how files are flushed, replaced and removed | `files` |
| how files arrive | `storage` |
| how models are loaded and unloaded | `servers` |
| when the pod is ready | `status` |
| what `/v1/models`, `.status.json` and the log show | `status`, `reasons`, `metrics`, `log` |
| what answers on the sidecar's port | `endpoints` |
| which flags there are | `cli` and `options`, with `flags` |
| who restarts a crashed puller | `supervise` |
| how sizes are written | `quantities` |

Imports: `puller.servers`, `puller.storage`.
"""
