"""Whether two tokenizers give every text the same ids, each of the same meaning."""

import json
from typing import Any

from jaxtrain.tokenizer.tokenizer import Tokenizer

#: Parts of a tokenizer.json beside the vocabulary that decide a text's ids.
_DECIDING = ("normalizer", "pre_tokenizer", "post_processor", "model")


def difference(one: Tokenizer, other: Tokenizer) -> str | None:
    """What first tells two tokenizers apart; None where they are one.

    Ids that one of them has reserved may have a name in the other, as control tokens get them; ids
    of one alone, behind all those of the other, are a difference.
    """
    if one.sha256 == other.sha256:
        return None
    if one.kind != other.kind:
        return f"one is {one.kind}, the other {other.kind}"
    unnamed = {*one.reserved_ids, *other.reserved_ids}
    for number in range(min(one.vocab_size, other.vocab_size)):
        names = one.token(number), other.token(number)
        if names[0] != names[1] and number not in unnamed:
            return f"id {number} is {names[0]!r} in one, {names[1]!r} in the other"
    if one.vocab_size != other.vocab_size:
        longer = max(one, other, key=lambda tokenizer: tokenizer.vocab_size)
        first = min(one.vocab_size, other.vocab_size)
        return f"id {first}, {longer.token(first)!r}, is in one of them only"
    parts = [_deciding(each) for each in (one, other)]
    for name in parts[0]:
        if parts[0][name] != parts[1].get(name):
            return f"their tokens are the same, but texts are split otherwise ({name})"
    return None


def _deciding(tokenizer: Tokenizer) -> dict[str, Any]:
    (name, content), *_ = tokenizer.files.items()
    if not name.endswith(".json"):
        return {"model": content}
    value = json.loads(content)
    parts = {part: value.get(part) for part in _DECIDING}
    model = dict(parts["model"] or {})
    model.pop("vocab", None)  # compared id by id
    return {**parts, "model": model}
