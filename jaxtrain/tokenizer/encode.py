"""Documents' texts to token ids, in order and on all cores, with a sample of them verified.

Special tokens around a text are added here and nowhere else, as the document's form says: usually
BOS, from which the first token of the text is predicted, so that a loss covers every byte, and EOS,
so that a model can end. They go to the token store, which keeps documents apart; what a row of a
batch looks like is decided in `data/`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from jaxtrain.tokenizer.tokenizer import Tokenizer

TEXT: Final = "text"

#: What a document becomes: roles of special tokens, and the text. Part of what decides a store.
DOCUMENT_FORM: Final = ("bos", TEXT, "eos")
DOCUMENT_FORMS: Final = (DOCUMENT_FORM, (TEXT, "eos"), ("bos", TEXT), (TEXT,))

_BATCH_CHARS = 4_000_000  # enough work for all cores at once, little enough to bound memory
_FIRST_VERIFIED = 16  # documents
_VERIFIED_ONE_IN = 128  # of the others, by a hash of their text: a few hundredths of the work


class Encoder:
    """Encodes texts and compares a sample with what the reference engine makes of it."""

    def __init__(self, tokenizer: Tokenizer, form: Sequence[str] = DOCUMENT_FORM) -> None:
        """Args: form: one of DOCUMENT_FORMS.

        Raises:
          ValueError: where the tokenizer has no token of a role in `form`.
        """
        if tuple(form) not in DOCUMENT_FORMS:
            raise ValueError(f"a document cannot have the form {' '.join(form)!r}")
        missing = [role for role in form if role != TEXT and role not in tokenizer.special_ids]
        if missing:
            raise ValueError(
                f"documents are to have the form {' '.join(form)!r}, but the tokenizer has no "
                f"{missing[0]} token; choose another form (--form), or name it in "
                "tokenizer_config.json"
            )
        cut = list(form).index(TEXT)
        self._tokenizer = tokenizer
        self._before, self._behind = (
            np.array([tokenizer.special_ids[role] for role in roles], np.uint32)
            for roles in (form[:cut], form[cut + 1 :])
        )
        self.num_verified = 0  # documents encoded again by the reference engine
        self.num_changed = 0  # of these, how many do not come back as they were

    def __call__(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields the ids (uint32) of each text in its form. Memory: a few MB of text.

        Raises:
          ValueError: where the reference engine gives other ids.
        """
        num_encoded = 0
        for batch in _batches(texts):
            encoded = self._tokenizer.encode_batch(batch)
            sample = [
                number
                for number, text in enumerate(batch)
                if num_encoded + number < _FIRST_VERIFIED or _is_chosen(text)
            ]
            self._verify([batch[each] for each in sample], [encoded[each] for each in sample])
            num_encoded += len(batch)
            for ids in encoded:
                yield np.concatenate([self._before, ids, self._behind])

    def _verify(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> None:
        expected = self._tokenizer.encode_by_reference(texts) if texts else []
        for text, ids, other in zip(texts, encoded, expected, strict=True):
            if not np.array_equal(ids, other):
                raise ValueError(
                    f"{self._tokenizer.engine} and the reference engine give different ids for "
                    f"{text[:100]!r}…; nothing was kept: please report this"
                )
            self.num_verified += 1
            self.num_changed += self._tokenizer.decode(ids) != text


def _is_chosen(text: str) -> bool:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little") % _VERIFIED_ONE_IN == 0


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
