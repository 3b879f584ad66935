"""`Family`: how one kind of Hugging Face model maps to ours, and the checks that hold for all.

What a family's `to_hf` writes is read again by its `to_config` before it counts: a config that a
family cannot express comes back different, and is refused by the names of the fields.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtrain.hub.fields import WITHOUT_EFFECT, Fields, raise_problems
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

#: Fields that a config.json does not hold beside those that a run may change on the way: how to
#: train and to compute, not what.
_OURS_ALONE = ("vocab_multiple", "dropout")
#: What to do with a quantised model, by its method.
_QUANTISED = {
    "mxfp4": "take a bfloat16 copy: from_pretrained(…, quantization_config=Mxfp4Config("
    "dequantize=True)) of `transformers`, then save_pretrained",
    "fp8": "take a bfloat16 copy: from_pretrained(…, quantization_config=FineGrainedFP8Config("
    "dequantize=True)) of `transformers`, or the publisher's conversion script",
}
_TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type`."""

    model_type: str
    architecture: str  #: the class in `transformers` with a language-model head
    to_config: Callable[[Fields], Mapping[str, Any]]  #: fields of the ModelConfig
    to_hf: Callable[[ModelConfig], Mapping[str, Any]]  #: fields of config.json
    weights: Callable[[ModelConfig], Sequence[Weight]]  #: every tensor that a model must have
    is_encoder: bool = False  #: every token sees the whole text
    #: Tensors of old files that hold nothing to load, as patterns of `fnmatch`.
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq",)
    #: Tensors that a model may hold as copies (copy -> original), and that exports write.
    copies: Callable[[ModelConfig], Mapping[str, str]] = lambda config: {}
    #: A tensor that a tied model may have besides, as a copy of another; exports do not have it.
    tied_copy: tuple[str, str] = ("lm_head.weight", "model.embed_tokens.weight")

    def read(self, hf: Mapping[str, Any], path: str = "config.json") -> ModelConfig:
        """The config of a model.

        Raises:
          ValueError: naming every field that is missing, wrong, not supported or not known.
        """
        fields = Fields(hf, path)
        _read_general(fields, self)
        values = dict(self.to_config(fields))
        if self.scorer in fields.sequence("architectures", ()):
            values["scalar_head"] = True
        fields.refuse_rest(WITHOUT_EFFECT)
        raise_problems(fields.problems, path)
        try:
            return ModelConfig(**values)
        except ValueError as error:
            raise ValueError(f"{path}: its values make no model: {error}") from error

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The config.json of a model; without token ids and dtype, which are not the model's.

        Raises:
          ValueError: naming the fields that this family cannot express.
        """
        lost = self.cannot_express(config)
        if lost:
            raise ValueError(f"a {self.model_type} model cannot express {'; '.join(lost)}")
        return {"model_type": self.model_type, **self._to_hf(config)}

    def _to_hf(self, config: ModelConfig) -> dict[str, Any]:
        """Fields of config.json, which head a model has among them."""
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}  # one: a score
        return {
            "architectures": [self.architecture_of(config)],
            **(labels if config.scalar_head else {}),
            **self.to_hf(config),
        }

    def architecture_of(self, config: ModelConfig) -> str:
        """The class in `transformers` of a model with the head that this one has."""
        return self.scorer or "" if config.scalar_head else self.architecture

    @property
    def scorer(self) -> str | None:
        """The class in `transformers` with a score in place of a decoder's head."""
        name, is_decoder, _ = self.architecture.partition("ForCausalLM")
        return f"{name}ForSequenceClassification" if is_decoder else None

    def cannot_express(self, config: ModelConfig) -> list[str]:
        """What of a config would be lost in this family, one entry a field."""
        if config.bidirectional != self.is_encoder:
            return [f"bidirectional={config.bidirectional}"]
        try:
            again = self.read(self._to_hf(config))
        except ValueError as error:
            return [str(error)]
        return other_function(config, again)


def other_function(config: ModelConfig, other: ModelConfig) -> list[str]:
    """Fields by which two configs compute different functions of the same weights."""
    names = [
        field.name
        for field in dataclasses.fields(config)
        if field.name not in _OURS_ALONE and not field.metadata["resumable"]
    ]
    pairs = {name: (getattr(config, name), getattr(other, name)) for name in names}
    # None stands for the scale that follows from head_dim, and some families write every scale.
    scales = [each.attention_scale or each.head_dim**-0.5 for each in (config, other)]
    if scales[0] == scales[1]:
        del pairs["attention_scale"]
    return [f"{name}={one!r} (but {two!r})" for name, (one, two) in pairs.items() if one != two]


def _read_general(fields: Fields, family: Family) -> None:
    """What is the same for all families."""
    architectures = fields.sequence("architectures", ())
    known = [each for each in (family.architecture, family.scorer) if each]
    if architectures and not set(known) & set(architectures):
        fields.problems.append(
            f"architectures={architectures} must be [{' or '.join(map(repr, known))}]: other heads "
            "are not read"
        )
    if family.scorer in architectures:
        num_labels = len(fields.values.get("id2label") or {"0": "", "1": ""})
        if num_labels != 1:
            fields.problems.append(
                f"id2label has {num_labels} labels (two where it is missing): only a head of one, "
                "a score, is read"
            )
    quantised = fields.section("quantization_config")
    if quantised is not None and quantised.values:
        method = str(quantised.values.get("quant_method"))
        remedy = _QUANTISED.get(method, "take the original model")
        fields.problems.append(
            f"quantization_config is given (quant_method={method}): quantised weights are not "
            f"read; {remedy}"
        )
    fields.only("is_encoder_decoder", False, why="it would be another model")
    fields.only("add_cross_attention", False, why="it would be another model")
    fields.only(
        "attention_dropout", 0, 0.0, why="attention weights have no dropout here; set it to 0"
    )
