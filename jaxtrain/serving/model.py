"""A stored model ready to answer: from a workdir's checkpoint or a Hugging Face directory.

Weights go straight onto the devices, sharded over `tensor` where a mesh is asked for: a decoder
reads all of them for each token, so that no axis may have to gather them.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxtrain import config_program, files, stored_weights, workdir
from jaxtrain.chat.codec import TokenizerCodec
from jaxtrain.chat.source import chat_template, template_source, turn_end_ids
from jaxtrain.chat.template import ChatTemplate
from jaxtrain.decode.draft import Draft, DraftModel
from jaxtrain.decode.engine import Engine
from jaxtrain.decode.mtp import DraftModules
from jaxtrain.decode.slots import MAX_STOP_IDS
from jaxtrain.hub.companions import HUB
from jaxtrain.hub.load import load_params
from jaxtrain.hub.model import HubModel
from jaxtrain.hub.save import GENERATION
from jaxtrain.lora.fingerprint import fingerprint
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import Split, flatten, split
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, Constrain, check_divides, named_shardings
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.run_config import RunConfig, of_any_stage, of_model
from jaxtrain.tokenizer.compare import difference
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.train.checkpoint_read import read_record, whole_steps

#: Tokens that prompt and answer may have where the model does not say what it was made for.
DEFAULT_MAX_LEN = 4096


@dataclasses.dataclass(frozen=True)
class TextModel:
    """A decoder with what turns its ids into text and conversations."""

    name: str  # what it was loaded from, for people
    config: ModelConfig
    recipe: str  # that it was trained with
    structure: Split
    params: Mapping[str, Any]
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the model brings no chat template
    end_ids: tuple[int, ...]  # at which an answer ends

    def engine(
        self,
        *,
        max_len: int | None,
        num_slots: int,
        chunk: int = 16,
        draft: Draft | None = None,
    ) -> Engine:
        """An engine for it; `max_len` None: as long as the model was made for, at most 4096.

        Raises:
          ValueError: where it is a reward model, which writes no text.
        """
        self._check_writes()
        return Engine(
            self.structure,
            self.params,
            max_len=max_len or self.default_max_len,
            num_slots=num_slots,
            never=[
                *range(self.tokenizer.vocab_size, self.config.vocab_size),
                *self.tokenizer.reserved_ids,
            ],
            chunk=chunk,
            draft=draft,
        )

    def draft_of(self, model: "TextModel", num_tokens: int) -> Draft:
        """This one as the draft of another, that proposes so many tokens in a turn.

        Raises:
          ValueError: where ids mean something else to it, or it writes no text.
        """
        self._check_writes()
        if told := difference(model.tokenizer, self.tokenizer):
            raise ValueError(
                f"--draft={self.name} has another tokenizer than {model.name}: {told}; name a "
                "model of the same tokenizer"
            )
        return DraftModel(self.structure, self.params, num_tokens)

    def own_draft(self, num_tokens: int | None) -> Draft:
        """Its modules of multi-token prediction as its draft.

        Args:
          num_tokens: proposed in a turn; None: as many as there are modules.

        Raises:
          ValueError: where it has none.
        """
        if not self.config.num_mtp_layers:
            raise ValueError(
                f"--draft=mtp: {self.name} has no modules of multi-token prediction "
                "(num_mtp_layers=0); name a smaller model, or leave --draft out"
            )
        return DraftModules(num_tokens or self.config.num_mtp_layers)

    def _check_writes(self) -> None:
        if self.config.scalar_head:
            raise ValueError(
                f"{self.name} is a reward model, which does not write text; score answers with "
                "python -m jaxtrain.reward --score"
            )

    @property
    def computes_in(self) -> str:
        """The dtype of activations and products: formats of fewer bits are for training alone."""
        return jax.numpy.dtype(get_recipe(self.recipe).compute_dtype).name

    @property
    def default_max_len(self) -> int:
        """Tokens that prompt and answer have room for unless told otherwise."""
        return min(self.config.context_len or DEFAULT_MAX_LEN, DEFAULT_MAX_LEN)

    @property
    def codec(self) -> TokenizerCodec:
        """The tokenizer as chat rendering needs it."""
        return TokenizerCodec(self.tokenizer)

    def chat(self) -> ChatTemplate:
        """The chat template.

        Raises:
          ValueError: where the model has none.
        """
        if self.template is None:
            raise ValueError(
                f"{self.name} has no chat template, so it was not taught to converse; give plain "
                "prompts, or put the template of its training beside it as chat_template.jinja"
            )
        return self.template

    def weights_hash(self) -> str:
        """Of the parameters' values, wherever they came from; reads memory once."""
        leaves = flatten(self.params)
        found = {path: fingerprint(leaf) for path, leaf in sorted(leaves.items())}
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of a text to continue, after BOS where the tokenizer has one."""
        bos = self.tokenizer.special_ids.get("bos")
        return ([] if bos is None else [bos]) + self.tokenizer.encode(text).tolist()


def from_workdir(path: pathlib.Path, step: int | None = None, num_tensor: int = 1) -> TextModel:
    """The model of a run's checkpoint (the latest whole one), from its workdir alone.

    Of a LoRA run the base is read too, and the updates are added to it.

    Args:
      num_tensor: devices that heads, feed-forward width and vocabulary are split over.

    Raises:
      ValueError: where there is no such checkpoint or no tokenizer, or the model is an encoder.
    """
    directory = path / workdir.CHECKPOINTS
    steps = whole_steps(directory)
    if not steps:
        raise ValueError(f"--workdir={path} has no whole checkpoint; train one first.")
    step = steps[-1] if step is None else step
    config = of_any_stage(read_record(directory, step).metadata["config"])
    if config.model.bidirectional:
        raise ValueError(f"--workdir={path} holds an encoder, which does not write text.")
    # A run that does not say what context its model is for trained it on rows of this length.
    length = config.model.context_len or config.data.seq_len
    model = dataclasses.replace(config.model, context_len=length)
    config = dataclasses.replace(config, model=model)

    weights = stored_weights.of_checkpoint(directory, step)

    def load(abstract: Mapping[str, Any], structure: Split) -> Mapping[str, Any]:
        return stored_weights.load(weights, abstract, structure.axes)

    return _text_model(f"{path} step {step}", path, config, load, num_tensor)


def from_hub(model: HubModel, num_tensor: int = 1, recipe: str | None = None) -> TextModel:
    """A Hugging Face model from its directory.

    Args:
      recipe: of precision; by default float32 for float32 weights, else bfloat16.

    Raises:
      ValueError: where weights, tokenizer or config do not fit together.
    """
    # Padding rows make the vocabulary divide; they are no tokens.
    shape = dataclasses.replace(model.config, vocab_multiple=num_tensor)
    config = of_model(shape, recipe or model.recipe)

    def load(abstract: Mapping[str, Any], structure: Split) -> Mapping[str, Any]:
        return load_params(model, abstract, structure.axes)

    return _text_model(str(model.directory), model.directory, config, load, num_tensor)


def _text_model(
    name: str,
    directory: pathlib.Path,
    config: RunConfig,
    load: Callable[[Mapping[str, Any], Split], Mapping[str, Any]],
    num_tensor: int,
) -> TextModel:
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids, but the model "
            f"{config.model.vocab_size}; they belong to different models."
        )
    source = template_source(directory)
    template = None if source is None else chat_template(source, tokenizer)
    ends = {*_declared_end_ids(directory), *_own_end_ids(source, tokenizer)}
    if len(ends) > MAX_STOP_IDS or not all(0 <= end < config.model.vocab_size for end in ends):
        raise ValueError(
            f"{directory}: answers end at ids {sorted(ends)}, which must be at most {MAX_STOP_IDS} "
            f"and below {config.model.vocab_size}; see eos_token_id in {GENERATION}"
        )
    mesh = _mesh(num_tensor)
    make = config_program.model_maker(config, Constrain(mesh))
    structure = split(jax.eval_shape(make, jax.random.key(0)))
    table = TABLES["zero1"].params
    try:
        check_divides(structure.axes, structure.params, table, mesh)
    except ValueError as error:
        raise ValueError(f"--num_tensor={num_tensor} does not fit {name}: {error}") from error
    where = named_shardings(structure.axes, table, mesh)
    abstract = jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at),
        structure.params,
        where,
    )
    return TextModel(
        name,
        config.model,
        config.precision.recipe,
        structure,
        load(abstract, structure),
        tokenizer,
        template,
        tuple(sorted(ends)),
    )


def _own_end_ids(source: str | None, tokenizer: Tokenizer) -> list[int]:
    """Ends that tokenizer and chat template say."""
    if source:
        return turn_end_ids(source, tokenizer)
    return [tokenizer.special_ids["eos"]] if "eos" in tokenizer.special_ids else []


def _declared_end_ids(directory: pathlib.Path) -> list[int]:
    """The eos_token_id of a Hugging Face model: one, or several where a turn has ends of its own.

    Raises:
      ValueError: where it is neither.
    """
    for path in (directory / GENERATION, directory / HUB / GENERATION):
        if path.is_file():
            found = files.read_json(path).get("eos_token_id")
            ends = [] if found is None else found if isinstance(found, list) else [found]
            if not all(type(each) is int for each in ends):
                raise ValueError(f"{path}: eos_token_id={found!r} must be an id or a list of ids")
            return ends
    return []


def _mesh(num_tensor: int) -> jax.sharding.Mesh:
    num_devices = jax.local_device_count()
    if not 1 <= num_tensor <= num_devices:
        raise ValueError(
            f"--num_tensor={num_tensor} must be from 1 to the {num_devices} device(s) here."
        )
    shape = MeshConfig(data=1, tensor=num_tensor)
    return make_mesh(shape, jax.local_devices()[: math.prod(shape.shape(num_tensor))])
