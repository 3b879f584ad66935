"""Byte-level BPE run by `tiktoken`: the same ids as `tokenizers` several times faster.

`tokenizers` merges the pair that comes first in its list of merges. `tiktoken` knows no pairs: it
merges two neighbours when their bytes together are a token, the token of lowest rank first. The two
give the same ids when

 1. every byte is a token, and nothing changes the text before it is cut or drops merges at random;
 2. ranks are in the order of the merges (ids may be in another, they are looked up afterwards);
 3. each token that `tiktoken` knows is what `tokenizers` makes of its bytes alone.

Why 3 is enough: as long as no merge has crossed the ends of a stretch of bytes, what happens inside
it is what happens to the stretch alone, for whichever merges come first there. If two neighbours
a, b spell a token t, then by 3 the bytes of t alone went through just these two on their way to t,
so that (a, b) is in the list. A token that fails 3 is left out, for it never comes about; where the
file looks whole pieces up first (`ignore_merges`) it is kept if its bytes alone end in three tokens
or more, for then no two neighbours ever spell it.

What the proof leaves open, that two regular expression engines cut alike (their tables of letters
may be of different Unicode versions), is tried out when a tokenizer is loaded, on code points of
all blocks and on sample texts, and on a sample of every token store when it is written.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers

from jaxtrain.tokenizer.byte_level import BYTE_OF, GPT2_PATTERN, to_bytes

_NO_PATTERN = r"(?s:.+)"  # the whole text is one piece

#: Where patterns and engines are apt to differ: white space, letters of all kinds, odd code points.
_SAMPLES = (
    "def f(x):\r\n\treturn  x+1\n\n\n    # don't, WON'T, I'ſ  \n",
    " a  b   c\u00a0d\u3000\u3000e\u2028f\u0085g\u200bh\ufeff\u180e\u001ci \t \n x  ",
    "e\u0301 न\u0940ति ไทย́ ｆｕｌｌ１２３ ①²½Ⅷ ǅ ʰ ﬁ 漢字かなカナ 한국어 العربية עברית",
    "👩‍🚀🏳️‍🌈 🇨🇳 \U0001f1e6x \ue000\U000f0000\ufffd\uffff\x00\x7f\x1f $€+<>=__init__(**k)",
    "1234 5.6e-7 12:30 0x1F  3,000 x2y '''doc''' ''' \n\n \n",
)


class Unsuitable(ValueError):
    """Why a tokenizer cannot be run by `tiktoken`."""


@dataclasses.dataclass(frozen=True)
class FastBPE:
    """A byte-level BPE vocabulary in `tiktoken`'s form."""

    encoding: tiktoken.Encoding
    ids: np.ndarray | None  # id of each rank; None where they are the same
    num_bytes: np.ndarray  # of each id

    def encode(self, text: str) -> np.ndarray:
        """The ids (uint32) of a text.

        Raises:
          ValueError: where the engine cannot cut the text (megabytes of white space).
        """
        ids = self.encoding.encode_to_numpy(text, disallowed_special=())
        return ids if self.ids is None else self.ids[ids]

    def cover(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> bool:
        """Whether the ids stand for as many bytes as the texts have: nothing was passed over."""
        num_bytes = sum(len(text.encode()) for text in texts)
        return int(self.num_bytes[np.concatenate(encoded)].sum()) == num_bytes


def build(content: Mapping[str, Any], engine: tokenizers.Tokenizer) -> FastBPE:
    """The fast form of the tokenizer whose `tokenizer.json` says `content`.

    Raises:
      Unsuitable: where it is not known to give the same ids.
    """
    model = content["model"]
    if model["type"] != "BPE":
        raise Unsuitable(f"its model is {model['type']}, not BPE")
    for field in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            raise Unsuitable(f"it has {field}={model[field]!r}")
    if content.get("normalizer"):
        raise Unsuitable("it changes the text first (normalizer)")
    if any(not token["special"] for token in content.get("added_tokens", ())):
        raise Unsuitable("it has added tokens that are read from the text")
    pattern = _pattern(content.get("pre_tokenizer"))
    if pattern != _NO_PATTERN and not _cut_alike(pattern):
        raise Unsuitable("its pattern is understood in two ways")
    ids, ranks = _ranks(model)
    encoding = _encoding(pattern, ranks)
    num_bytes = np.zeros(max(engine.get_vocab().values(), default=0) + 1, np.int64)
    num_bytes[ids] = [len(token) for token in ranks]
    same = np.array_equal(ids, np.arange(len(ids)))
    fast = FastBPE(encoding, None if same else ids.astype(np.uint32), num_bytes)
    for sample in _SAMPLES:
        ours = fast.encode(sample).tolist()
        if ours != engine.encode(sample, add_special_tokens=False).ids:
            raise Unsuitable(f"it gives other ids for {sample!r}")
    return fast


def _encoding(pattern: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    try:
        return tiktoken.Encoding(
            "jaxtrain", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
    except ValueError as error:
        raise Unsuitable(f"its pattern is not understood ({error})") from error


@functools.cache
def _cut_alike(pattern: str) -> bool:
    return all(ours == theirs for ours, theirs in probe(pattern, range(0, 0x32000, 11)))


def probe(pattern: str, code_points: Iterable[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Ids by `tiktoken` and by `tokenizers` that tell how a pattern classes code points.

    In the vocabulary used a character's first byte merges with a letter, a mark and a line break
    before it, as it does where no cut lies between them.
    """
    before = "A!\n"
    # By no merge of the mark with itself, which would come first.
    spelled = {byte: character for character, byte in BYTE_OF.items()}
    pairs = [
        (spelled[ord(each)], other)
        for each in before
        for other in BYTE_OF
        if other != spelled[ord(each)]
    ]
    tokens = [spelled[byte] for byte in range(256)] + ["".join(pair) for pair in pairs]
    vocab = {token: number for number, token in enumerate(tokens)}
    engine = tokenizers.Tokenizer(models.BPE(vocab, pairs))
    engine.pre_tokenizer = (
        # The library has this pattern built in, written with a look-ahead.
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if pattern == GPT2_PATTERN
        else pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    encoding = _encoding(pattern, {to_bytes(token) or b"": vocab[token] for token in tokens})
    characters = [chr(each) for each in code_points if not 0xD800 <= each < 0xE000]
    for each in before:
        # Two marks: one could be the character that a word may have before it. Short texts: letters
        # that follow one another are one piece.
        texts = [
            "".join(2 * each + character for character in characters[start : start + 50])
            for start in range(0, len(characters), 50)
        ]
        theirs = engine.encode_batch_fast(texts)
        for text, encoded in zip(texts, theirs, strict=True):
            yield encoding.encode_ordinary(text), encoded.ids


def _pattern(pre_tokenizer: Mapping[str, Any] | None) -> str:
    steps = [pre_tokenizer] if pre_tokenizer else []
    if pre_tokenizer and pre_tokenizer["type"] == "Sequence":
        steps = list(pre_tokenizer["pretokenizers"])
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        raise Unsuitable("it is not byte-level, or puts a space before the text")
    match steps[:-1], steps[-1]["use_regex"]:
        case [], True:
            return GPT2_PATTERN
        case [], False:
            return _NO_PATTERN
        case [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            }
        ], False:
            return pattern
    raise Unsuitable("it cuts the text in a way that is not one pattern")


def _ranks(model: Mapping[str, Any]) -> tuple[np.ndarray, dict[bytes, int]]:
    """(id of each rank, rank of each token), bytes first and then in the order of the merges."""
    vocab: dict[str, int] = model["vocab"]
    spelled = {token: to_bytes(token) for token in vocab}
    single = {token: text for token, text in spelled.items() if text is not None and len(text) == 1}
    if len(single) != 256:
        raise Unsuitable(f"it has {len(single)} of the 256 bytes")
    merged = _in_order_of_merges(model["merges"], vocab)
    alone = _encoded_alone(model, [*merged, *(each for each in vocab if each not in merged)])
    known = [token for token in merged if alone[token] == 1]
    if model.get("ignore_merges"):
        others = [token for token in vocab if alone[token] != 1]
        if any(alone[token] == 2 for token in others):
            raise Unsuitable("it has tokens that two neighbours spell without being merged")
        known += [token for token in others if spelled[token]]
    in_order = [*sorted(single, key=vocab.__getitem__), *known]
    ids = np.array([vocab[token] for token in in_order])
    return ids, {spelled[token] or b"": rank for rank, token in enumerate(in_order)}


def _in_order_of_merges(merges: Sequence[Any], vocab: Mapping[str, int]) -> list[str]:
    """The tokens that merges make, by their first merge; all merges of one are neighbours."""
    order: list[str] = []
    seen: set[str] = set()
    for merge in merges:
        token = "".join(merge.split(" ", 1) if isinstance(merge, str) else merge)
        if token not in vocab:
            raise Unsuitable(f"a merge makes {token!r}, which is no token")
        if order and order[-1] == token:
            continue
        if token in seen:
            raise Unsuitable(f"{token!r} is made by merges of different rank")
        seen.add(token)
        order.append(token)
    return order


def _encoded_alone(model: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, int]:
    """How many tokens the merges make of each token's own bytes (1: of itself)."""
    plain = {**model, "ignore_merges": False, "vocab": model["vocab"], "merges": model["merges"]}
    content = {"version": "1.0", "added_tokens": [], "model": plain}
    engine = tokenizers.Tokenizer.from_str(json.dumps(content))
    encoded = engine.encode_batch_fast(list(tokens), add_special_tokens=False)
    return {token: len(each.ids) for token, each in zip(tokens, encoded, strict=True)}
