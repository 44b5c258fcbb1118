"""Writes the folder `model`: a very small BERT with random weights, and the toy behind it."""

from pathlib import Path

from layer import Toy
from sentence_transformers import SentenceTransformer, models
from transformers import BertConfig, BertModel, BertTokenizerFast

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
Path("vocab.txt").write_text("\n".join(words))
BertTokenizerFast("vocab.txt").save_pretrained("bert")
config = BertConfig(
    vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
BertModel(config).save_pretrained("bert")
bert = models.Transformer("bert")
SentenceTransformer(modules=[bert, models.Pooling(16), Toy()]).save("model")
