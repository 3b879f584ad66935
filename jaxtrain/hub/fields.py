"""Reading a config.json to the last field: each is used, known to be without effect, or refused.

A reader collects everything that is wrong, so that one error lists it all.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: Fields of any family that do not change what a model computes from token ids (old files have
#: defaults of generation among them).
WITHOUT_EFFECT = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "do_sample",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "max_length",
        "model_type",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "repetition_penalty",
        "return_dict",
        "temperature",
        "top_k",
        "top_p",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)

_MISSING: Any = object()


class Fields:
    """A config.json (or an object within one) whose fields are taken out one by one."""

    def __init__(self, values: Mapping[str, Any], path: str = "config.json") -> None:
        self.values, self.path = values, path
        self.problems: list[str] = []
        self._taken: set[str] = set()

    def integer(
        self, name: str, default: Any = _MISSING, *, least: int = 1, most: int = 2**31 - 1
    ) -> Any:
        """An int; null counts as absent. Without a default it must be there."""
        value = self._take(name, default, (int,), "an integer")
        if value is not default and not least <= value <= most:
            self.problems.append(f"{name}={value} must be from {least} to {most}")
            return 1 if default is _MISSING else default
        return 1 if value is _MISSING else value  # absent, which is listed already

    def number(self, name: str, default: Any = _MISSING, *, null: Any = _MISSING) -> Any:
        """A float; `null`: what null means, where that is not "absent"."""
        if null is not _MISSING and name in self.values and self.values[name] is None:
            self._taken.add(name)
            return null
        value = self._take(name, default, (int, float), "a number")
        value = 1.0 if value is _MISSING else value
        return float(value) if isinstance(value, int) else value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self._take(name, default, (bool,), "true or false")

    def sequence(self, name: str, default: Any = _MISSING) -> Any:
        """A list."""
        value = self._take(name, default, (list, tuple), "a list")
        return [] if value is _MISSING else value

    def text(self, name: str, default: Any = _MISSING) -> Any:
        """A string."""
        value = self._take(name, default, (str,), "a string")
        return "" if value is _MISSING else value

    def section(self, name: str) -> "Fields | None":
        """An object; None where it is absent or null. Its own problems join these."""
        value = self._take(name, None, (dict,), "an object")
        if value is None:
            return None
        inner = Fields(value, f"{name}.")
        inner.problems = self.problems
        return inner

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """A field that may only have these values (the first where it is absent)."""
        self._taken.add(name)
        value = self.values.get(name, allowed[0])
        if value is not None and value not in allowed:
            listed = " or ".join(repr(each) for each in allowed)
            self.problems.append(f"{name}={value!r} is not supported (only {listed}): {why}")

    def without_effect(self, *names: str) -> None:
        """Further fields that do not change what the model computes."""
        self._taken |= set(names)

    def refuse_rest(self, also_known: Iterable[str] = ()) -> None:
        """Lists every field that nothing has asked for."""
        known = self._taken | set(also_known)
        for name in sorted(self.values.keys() - known):
            place = self.path if self.path.endswith(".") else ""
            self.problems.append(
                f"{place}{name}={_short(self.values[name])} is not known to this family and could "
                "change what the model computes"
            )

    def _take(self, name: str, default: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        self._taken.add(name)
        value = self.values.get(name)
        place = self.path if self.path.endswith(".") else ""
        if value is None:
            if default is _MISSING:
                self.problems.append(f"{place}{name} is missing; it must be {wanted}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.problems.append(f"{place}{name}={_short(value)} must be {wanted}")
            return default
        return value


def raise_problems(problems: Iterable[str], where: str) -> None:
    """One error with all of them, if there are any."""
    problems = list(problems)
    if problems:
        raise ValueError(f"{where}: {'; '.join(problems)}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
