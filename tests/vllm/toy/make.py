"""Writes a model of random weights that answers fast: `python make.py FOLDER`. Runs in vLLM's environment."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = sys.argv[1]
torch.manual_seed(0)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {**{letter: n for n, letter in enumerate(letters)}, "<s>": 256, "</s>": 257}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
config = LlamaConfig(
    vocab_size=258,
    hidden_size=256,  # vLLM's kernel for processors needs heads of 64
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=32768,
    bos_token_id=256,
    eos_token_id=257,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
