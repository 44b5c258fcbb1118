"""Writes `model.gguf`: a very small model of the Llama architecture with random weights."""

import gguf
import numpy as np

WIDTH, VOCABULARY = 32, 256 + 3
random = np.random.default_rng(0)
writer = gguf.GGUFWriter("model.gguf", "llama")
writer.add_context_length(4096)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(WIDTH)
writer.add_head_count(2)
writer.add_head_count_kv(2)
writer.add_rope_dimension_count(WIDTH // 2)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(VOCABULARY)
kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
writer.add_tokenizer_model("llama")
writer.add_token_list([b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))])
writer.add_token_scores([0.0] * VOCABULARY)
writer.add_token_types([*kinds, *[gguf.TokenType.BYTE] * 256])
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
for name in ("token_embd", "output"):
    writer.add_tensor(f"{name}.weight", random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    writer.add_tensor(f"blk.0.{name}.weight", random.normal(size=(WIDTH, WIDTH)).astype(np.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
