"""Model servers: one class for each protocol, with one interface for the reconciler.

| question | module |
|---|---|
| what the reconciler asks of a server, and how a call is made | `base` |
| MLServer, KServe's servers, Triton | `v2` |
| TensorFlow Serving | `tfserving` |
| LoRA adapters of vLLM and SGLang | `lora` |

Imports: `puller`.
"""
