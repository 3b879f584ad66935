"""What a training stage asks of its config and its stores, before anything is touched."""

import pathlib
import tempfile
from collections.abc import Mapping, Sequence

from jaxtrain.data.heldout import HeldOut
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Store
from jaxtrain.hub.companions import read_tokenizer
from jaxtrain.run_config import RunConfig
from jaxtrain.stored_weights import named
from jaxtrain.tokenizer.compare import difference
from jaxtrain.tokenizer.special_tokens import FILES
from jaxtrain.tokenizer.tokenizer import Tokenizer


def check_starts_from_model(config: RunConfig) -> None:
    """Raises a ValueError where a stage after pre-training has no model to start from."""
    if config.init.from_ is None:
        raise ValueError(
            "config.init.from is not set; this stage starts from a model: name a workdir, or the "
            "directory of a Hugging Face model"
        )
    check_takes_parameters(config)


def check_takes_parameters(config: RunConfig) -> None:
    """Raises a ValueError where more than a model would be taken from another stage's run."""
    if config.init.from_ is not None and config.init.load != "params":
        raise ValueError(
            f"config.init.load={config.init.load} would go on with the schedule and the data of "
            "another stage; set config.init.load=params"
        )


def check_conversations(source: Loader, heldout: Mapping[str, HeldOut]) -> None:
    """Refuses stores without a mask alone, and stores of different templates together."""
    check_documents(source, heldout)
    if not any(each.store.has_mask for each in source.sources):
        raise ValueError(
            "config.data.sources holds no conversations, only plain text; make a store of them "
            "with python -m jaxtrain.tokenize chat, or use jaxtrain.pretrain"
        )
    check_one_template(source, heldout)


def check_one_template(source: Loader, heldout: Mapping[str, HeldOut]) -> None:
    """Refuses stores of different chat templates together."""
    stores = {f"sources.{each.name}": each.store for each in source.sources}
    stores |= {f"eval_sources.{name}": each.source.store for name, each in heldout.items()}
    templates = {
        name: store.tokenization.settings.get("chat_template_sha256")
        for name, store in stores.items()
    }
    if len(set(filter(None, templates.values()))) > 1:
        each = ", ".join(f"{name} {str(template)[:12]}" for name, template in templates.items())
        raise ValueError(
            f"config.data has stores of different chat templates ({each}); make them with one"
        )


def check_answers(
    source: Loader, heldout: Mapping[str, HeldOut], kinds: Sequence[str], needed_by: str
) -> None:
    """Refuses stores that do not hold one of these kinds of answers, and different kinds together.

    Args:
      needed_by: what of the config asks for them.
    """
    found = {f"sources.{each.name}": source.answers for each in source.sources}
    found |= {f"eval_sources.{name}": each.answers for name, each in heldout.items()}
    wanted = source.answers if source.answers in kinds else " or ".join(kinds)
    for key, answers in found.items():
        if answers not in kinds or answers != source.answers:
            raise ValueError(
                f"config.data.{key} holds {answers or 'no answers to compare'}, but {needed_by} "
                f"learns from {wanted}; make a store of them with python -m jaxtrain.tokenize "
                "answers"
            )
    check_one_template(source, heldout)


def check_documents(source: Loader, heldout: Mapping[str, HeldOut]) -> None:
    """Refuses stores of answers to compare, which a loss over tokens would not."""
    found = {f"sources.{each.name}": source.answers for each in source.sources}
    found |= {f"eval_sources.{name}": each.answers for name, each in heldout.items()}
    for key, answers in found.items():
        if answers is not None:
            raise ValueError(
                f"config.data.{key} holds answers to compare ({answers}), which this stage does "
                "not; make a store with python -m jaxtrain.tokenize chat or encode"
            )


def check_teacher_tokenizer(source: Loader, where: str) -> int:
    """As `check_tokenizer`, of config.teacher.from."""
    advice = (
        "a teacher and its student must share theirs. Let it write text instead (python -m "
        "jaxtrain.distill_text), and fine-tune on that"
    )
    return check_tokenizer(source, "config.teacher.from", where, advice)


def check_reference_tokenizer(source: Loader, where: str) -> None:
    """As `check_tokenizer`, of config.reference.from."""
    advice = "to it these ids are other text. Name a model with the tokenizer of the data"
    check_tokenizer(source, "config.reference.from", where, advice)


def check_tokenizer(source: Loader, key: str, where: str, advice: str) -> int:
    """Compares the stores' tokenizer with that of another model; returns how many ids they have.

    Args:
      key: of the config, that names the model.
      where: its value: a workdir, perhaps with a step, or the directory of a Hugging Face model.
      advice: what to do where they differ.

    Raises:
      ValueError: naming the first token that differs, or where one of them has no tokenizer.
    """
    name, _, step = where.rpartition("@") if "@" in where else (where, "", "")
    directory = pathlib.Path(name if step.isdigit() else where)
    if not directory.is_dir():
        raise ValueError(
            f"{key}: {where} is neither the directory of a Hugging Face model nor a workdir"
        )
    other = read_tokenizer(directory)
    store = source.sources[0].store  # all stores of a run have the same
    own = _tokenizer_of(store)
    if other is None or own is None:
        lacks = f"{key}={where!r}" if other is None else store.path
        raise ValueError(
            f"{lacks} has no tokenizer, so that nothing says whether ids mean the same to both; "
            "put its files there"
        )
    if told := difference(own, other):
        raise ValueError(f"{key}={where!r} has another tokenizer than the data: {told}; {advice}")
    return own.vocab_size


def check_listed(top_k: int, num_shared: int) -> None:
    """Raises a ValueError where more of a teacher's ids would be kept than there are."""
    if top_k > num_shared:
        raise ValueError(
            f"config.loss.top_k={top_k} must be at most {num_shared}, the ids of the tokenizer, of "
            "which config.teacher.runs=ahead keeps so many at each token"
        )


def _tokenizer_of(store: Store) -> Tokenizer | None:
    contents = {name: store.companion(name) for name in FILES}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            if content is not None:
                pathlib.Path(folder, name).write_bytes(content)
        return read_tokenizer(pathlib.Path(folder))


def check_same_width(config: RunConfig, teacher: str) -> None:
    """Raises a ValueError where hidden states of teacher and student cannot be compared."""
    width = named(teacher).config.d_model
    if width != config.model.d_model:
        raise ValueError(
            f"config.loss.hidden_weight compares hidden states, but the student is "
            f"{config.model.d_model} wide and the teacher {width}; set it to 0"
        )
