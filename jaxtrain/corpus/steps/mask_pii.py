"""Masks personal data and credentials by typed placeholders, or drops a document full of them."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.pii.find import KINDS, REGIONS, PersonalData, mask
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.options import option

_TOO_MUCH = "too much personal data"


@dataclasses.dataclass(frozen=True)
class Config:
    """What is masked and when a document is dropped instead."""

    kinds: tuple[str, ...] = option(KINDS, f"what is looked for, of: {', '.join(KINDS)}")
    regions: tuple[str, ...] = option(
        REGIONS, "ISO 3166 codes of regions whose phone numbers are found without country code too"
    )
    # Dolma (2024): more than 5 drop the document. FineWeb masks e-mail and IP addresses only.
    max_finds: int | None = option(5, "drop a document with more finds; None: mask all of them")

    def __post_init__(self) -> None:
        for place, kind in enumerate(self.kinds):
            if kind not in KINDS:
                raise ValueError(f"kinds[{place}]={kind!r} must be one of {', '.join(KINDS)}")
        if not self.kinds:
            raise ValueError("kinds is empty; name at least one, or take mask_pii out of steps")
        if self.max_finds is not None and self.max_finds < 0:
            raise ValueError(f"max_finds={self.max_finds} must be ≥ 0, or None to mask them all")
        PersonalData(self.kinds, self.regions)


class MaskPii:
    """Each find becomes its placeholder, `<EMAIL>`; a second run finds none."""

    needs: Sequence[str] = ()
    writes: Mapping[str, type] = {}
    private = True  # examples in the data card must not show what it masks

    def __init__(self, config: Config):
        self._data = PersonalData(config.kinds, config.regions)
        self._max_finds = config.max_finds
        dropping = () if config.max_finds is None else (_TOO_MUCH,)
        self.rules: Sequence[str] = (*(kind for kind in KINDS if kind in config.kinds), *dropping)

    def __call__(self, batch: Sequence[Document]) -> Sequence[Outcome]:
        return [self._judge(document) for document in batch]

    def _judge(self, document: Document) -> Outcome:
        spans = self._data.find(document.text)
        if not spans:
            return Outcome(document)
        if self._max_finds is not None and len(spans) > self._max_finds:
            return Outcome(document, _TOO_MUCH, f"{len(spans)} finds > {self._max_finds}")
        edits = collections.Counter(span.kind for span in spans)
        return Outcome(document._replace(text=mask(document.text, spans)), edits=dict(edits))


def make(config: Config, workspace: Workspace) -> MaskPii:
    """The step."""
    return MaskPii(config)
