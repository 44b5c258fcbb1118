"""Writes a LoRA adapter of random weights for the toy model: `python adapter.py FOLDER SEED`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
RANK, HIDDEN, LAYERS = 8, 256, 2
torch.manual_seed(seed)
weights = {}
for layer in range(LAYERS):
    for module in ("q_proj", "v_proj"):
        place = f"base_model.model.model.layers.{layer}.self_attn.{module}"
        weights[f"{place}.lora_A.weight"] = torch.randn(RANK, HIDDEN, dtype=torch.bfloat16)
        weights[f"{place}.lora_B.weight"] = torch.randn(HIDDEN, RANK, dtype=torch.bfloat16)
folder.mkdir(parents=True)
save_file(weights, folder / "adapter_model.safetensors")
config = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": RANK,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
}
(folder / "adapter_config.json").write_text(json.dumps(config))
