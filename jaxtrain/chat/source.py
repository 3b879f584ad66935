"""Where a model's chat template comes from: its own files, or one of the built-in ones by name.

A model brings its template as `chat_template.jinja` or inside `tokenizer_config.json`. A base model
has none; which built-in one it is taught is a choice, made by name and never guessed.
"""

import contextlib
import os
import pathlib
from typing import Any, Final

from jaxtrain import files
from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.codec import TokenizerCodec
from jaxtrain.chat.render import turn_end
from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.tokenizer.special_tokens import CONFIG_FILE, ROLES
from jaxtrain.tokenizer.tokenizer import Tokenizer

TEMPLATE_FILE: Final = "chat_template.jinja"
_DEFAULT: Final = "default"


def template_source(directory: str | os.PathLike[str]) -> str | None:
    """The source of the template that a model's directory holds; None where it has none.

    Raises:
      ValueError: where it holds something else in the template's place.
    """
    path = pathlib.Path(directory, TEMPLATE_FILE)
    if path.is_file():
        return template_text(path)
    path = pathlib.Path(directory, CONFIG_FILE)
    found: Any = files.read_json(path).get("chat_template") if path.is_file() else None
    if isinstance(found, list):  # several by name
        found = {each.get("name"): each.get("template") for each in found}
        if _DEFAULT not in found:
            raise ValueError(
                f"{path} has chat templates named {', '.join(map(str, found))}, none of them "
                f"{_DEFAULT!r}; put the one to use into {TEMPLATE_FILE}"
            )
        found = found[_DEFAULT]
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{path}: chat_template is {type(found).__name__}, but must be a text")
    return found


def template_text(path: pathlib.Path) -> str:
    """The text of a template's file.

    Raises:
      ValueError: where it is no UTF-8, naming it.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no chat template: not UTF-8 at byte {error.start}; save it as UTF-8"
        ) from error


def chat_template(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    """The template with the variables that templates print (`bos_token`, `eos_token`, …)."""
    return ChatTemplate(
        source,
        {
            f"{role}_token": tokenizer.token(tokenizer.special_ids[role])
            for role in ROLES
            if role in tokenizer.special_ids
        },
    )


def teach(tokenizer: Tokenizer, name: str) -> tuple[Tokenizer, str]:
    """A base model's tokenizer with the control tokens of a built-in template, and its source.

    Raises:
      ValueError: for a name that is not in BUILTIN.
    """
    if name not in BUILTIN:
        raise ValueError(f"chat template {name!r} must be one of {', '.join(BUILTIN)}")
    builtin = BUILTIN[name]
    special = {tokenizer.token(number) for number in tokenizer.special_token_ids}
    missing = [token for token in builtin.control_tokens if token not in special]
    # One that has them all stays what it is, byte for byte: it is known by its content.
    taught = tokenizer.with_special_tokens(missing) if missing else tokenizer
    return taught, builtin.source


def turn_end_ids(source: str, tokenizer: Tokenizer) -> list[int]:
    """Ids at which an answer ends: end of text, and the token that ends an assistant's turn.

    The latter is read off the template, by rendering an answer; a template that fails on that says
    why when it is used.
    """
    ends = {tokenizer.special_ids["eos"]} if "eos" in tokenizer.special_ids else set()
    with contextlib.suppress(TemplateError):
        word = turn_end(chat_template(source, tokenizer), TokenizerCodec(tokenizer))
        ends |= set() if word is None else {tokenizer.control_id(word)}
    return sorted(ends)
