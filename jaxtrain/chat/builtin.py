"""Templates for models that bring none: ChatML, Llama 3, and the short `<|user|>…<|assistant|>`.

Each marks with {% generation %} what an assistant says, the token that ends its turn included.
`control_tokens` lists what a tokenizer must have for one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Builtin(NamedTuple):
    """A template and the control tokens that it writes, the one that ends a turn first."""

    source: str
    control_tokens: tuple[str, ...]


_CHATML: Final = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] -}}{{- '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

_LLAMA3: Final = """\
{{- '<|begin_of_text|>' -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] | trim -}}{{- '<|eot_id|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] | trim + '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
"""

_SEED: Final = """\
{{- '<|bos|>' -}}
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] -}}{{- '<|end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

BUILTIN: Final[Mapping[str, Builtin]] = {
    "chatml": Builtin(_CHATML, ("<|im_end|>", "<|im_start|>")),
    "llama3": Builtin(
        _LLAMA3,
        ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    ),
    "seed": Builtin(
        _SEED, ("<|end|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
    ),
}
