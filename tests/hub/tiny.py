"""A tiny Llama directory, written by other code than ours (the `safetensors` package)."""

import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import tokenizers
from safetensors.numpy import save_file

V, D, F, L, N, K, H = 24, 8, 12, 3, 2, 1, 4
FIELDS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": L,
    "num_attention_heads": N,
    "num_key_value_heads": K,
    "head_dim": H,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def tensors(dtype: str = "float32") -> dict[str, np.ndarray]:
    """Every tensor of such a model, all different."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
    shapes["lm_head.weight"] = (V, D)
    for layer in range(L):
        of = f"model.layers.{layer}."
        shapes |= {
            f"{of}input_layernorm.weight": (D,),
            f"{of}post_attention_layernorm.weight": (D,),
            f"{of}self_attn.q_proj.weight": (N * H, D),
            f"{of}self_attn.k_proj.weight": (K * H, D),
            f"{of}self_attn.v_proj.weight": (K * H, D),
            f"{of}self_attn.o_proj.weight": (D, N * H),
            f"{of}mlp.gate_proj.weight": (F, D),
            f"{of}mlp.up_proj.weight": (F, D),
            f"{of}mlp.down_proj.weight": (D, F),
        }
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {name: x.astype(np.float32).astype(DTYPES[dtype]) for name, x in made.items()}


def write(
    directory: pathlib.Path,
    content: dict[str, np.ndarray] | None = None,
    fields: dict[str, Any] | None = None,
    shards: int = 1,
) -> pathlib.Path:
    """The directory with config.json and weights in one file or several."""
    content = tensors() if content is None else content
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**FIELDS, **(fields or {})}))
    if shards == 1:
        save_file(content, directory / "model.safetensors")
        return directory
    names, weight_map = sorted(content), {}
    for number in range(shards):
        file = f"model-{number + 1}-of-{shards}.safetensors"
        part = {name: content[name] for name in names[number::shards]}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def add_tokenizer(directory: pathlib.Path) -> pathlib.Path:
    """A tokenizer of 22 tokens beside the model, with a chat template; two rows are to spare."""
    tokens = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrs"]
    engine = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>")
    )
    engine.add_special_tokens(tokens[:3])
    engine.save(str(directory / "tokenizer.json"))
    roles = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{{x}}",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(roles))
    generation = {"bos_token_id": 1, "eos_token_id": [2, 3], "max_length": 64}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory
