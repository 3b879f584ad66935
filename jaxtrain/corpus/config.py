"""`CorpusConfig`: what is read, through which steps, and how the work is done.

Each module of `steps/` brings its own section: `config.<module>` is its `Config`. So a new step is
one file, and nothing here changes.
"""

import contextlib
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxtrain.corpus import steps as steps_package
from jaxtrain.corpus.executors import LOCAL, RAY
from jaxtrain.corpus.inputs.reading import ReadingConfig
from jaxtrain.options import option


def _modules() -> dict[str, ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(steps_package.__path__))
    return {name: importlib.import_module(f"{steps_package.__name__}.{name}") for name in names}


STEP_MODULES: Mapping[str, ModuleType] = _modules()


@dataclasses.dataclass(frozen=True)
class _Settings:
    """How raw text becomes a corpus."""

    inputs: tuple[str, ...] = option(
        (),
        "what to read, commas between: [name=]path, glob, URL or stdlib: (this Python's library); "
        "the name is the source of its documents",
    )
    licences: tuple[str, ...] = option(
        (), "name=licence of inputs, for the card, e.g. books=CC0-1.0"
    )
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    steps: tuple[str, ...] = option(
        (),
        "cleaning steps in their order, commas between: modules of jaxtrain/corpus/steps, or "
        "module:function for your own",
    )
    heldout_frac: float = option(0.05, "share of documents held out, by a hash of their ids")
    rejected: str = option(
        "sample",
        "removed documents to keep, with the reason: none, some of each rule, or all",
        choices=("none", "sample", "all"),
    )
    chunk_bytes: int = option(
        32_000_000, "text (bytes) of a chunk, the unit of memory per worker and of resuming"
    )
    executor: str = option(
        LOCAL, "processes of this machine, or tasks on a Ray cluster", choices=(LOCAL, RAY)
    )
    num_workers: int | None = option(None, "workers at a time; None: one for each core")

    def __post_init__(self) -> None:
        if not 0 <= self.heldout_frac < 1:
            raise ValueError(
                f"heldout_frac={self.heldout_frac} must lie between 0 and 1; 0.05 is usual"
            )
        if self.chunk_bytes < 1:
            raise ValueError(f"chunk_bytes={self.chunk_bytes} must be at least 1")
        if self.num_workers is not None and self.num_workers < 1:
            raise ValueError(f"num_workers={self.num_workers} must be at least 1, or None")
        names = {given.partition("=")[0] for given in self.inputs if "=" in given}
        for given in self.licences:
            name, equals, licence = given.partition("=")
            if not (name and equals and licence):
                raise ValueError(f"licences: {given!r} must be name=licence, e.g. books=CC0-1.0")
            if name not in names:
                raise ValueError(
                    f"licences names {name}, which is no name of config.inputs "
                    f"({', '.join(sorted(names)) or 'which have none'})"
                )


if TYPE_CHECKING:

    class CorpusConfig(_Settings):
        """How raw text becomes a corpus, with a section for each module of steps/."""

        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    CorpusConfig = dataclasses.make_dataclass(
        "CorpusConfig",
        [(name, module.Config, option(module.Config())) for name, module in STEP_MODULES.items()],
        bases=(_Settings,),
        namespace={"__doc__": _Settings.__doc__, "__module__": __name__},
        frozen=True,
    )


@contextlib.contextmanager
def naming_settings(settings: Any, path: str) -> Iterator[None]:
    """Puts the path of a setting before errors of the block whose text begins with its name.

    Args:
      settings: the config dataclass at `path`; errors that begin otherwise get the path alone.
        Where it has a section `reading` of its own, they mean that one by `config.reading`.
    """
    try:
        yield
    except ValueError as error:
        names = {field.name for field in dataclasses.fields(settings)}
        text = str(error)
        if "reading" in names:
            text = text.replace("config.reading.", f"{path}.reading.")
        joint = "." if re.split(r"\W", text, maxsplit=1)[0] in names else ": "
        raise ValueError(f"{path}{joint}{text}") from error
