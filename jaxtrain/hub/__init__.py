"""Models of other people in, ours out: the Hugging Face form of configs, weights and tokenizers.

families/       one file a family: config.json <-> ModelConfig, and its table of weights
weights.py      what such a table is made of
directory.py    a model's files: which tensors they hold and where, read by memory mapping
load.py         tensors to sharded parameters          save.py   parameters to a directory
vocabulary.py   rows for added tokens                  model_card.py   README.md of an export
"""
