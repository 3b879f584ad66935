import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from jaxtrain.tokenizer import bpe, byte_level, fast_bpe
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.tokenizer_json import TokenizerJson, serialized

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def content(root_dir):
    """The content of a tokenizer.json of 1,000 ids."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(root_dir.glob("jaxtrain/*.py"))]
    return json.loads(bpe.train(texts, 1000).files["tokenizer.json"])


def _changed(content, **parts) -> TokenizerJson:
    return TokenizerJson(serialized({**content, **parts}))


def _of_merges(merges, **options) -> TokenizerJson:
    """A byte-level BPE over one piece, of letters with the given merges."""
    tokens = [*byte_level.BYTE_OF, *dict.fromkeys("".join(merge) for merge in merges)]
    vocab = {token: number for number, token in enumerate(tokens)}
    engine = tokenizers.Tokenizer(models.BPE(vocab, merges, **options))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = tokenizers.decoders.ByteLevel()
    return TokenizerJson(engine.to_str().encode())


@pytest.mark.parametrize(
    ("pattern", "one_in"), [(byte_level.PATTERN, 1), (byte_level.GPT2_PATTERN, 7), (LLAMA3, 7)]
)
def test_every_code_point_is_classed_alike_by_both_engines(pattern, one_in):
    # Planes 4 to 13 and 15 to 16 hold no character.
    every = [*range(0x40000), *range(0xE0000, 0xE0400), 0xF0000, 0x10FFFF]
    for ours, theirs in fast_bpe.probe(pattern, every[::one_in]):
        assert ours == theirs


def test_probe_tells_letters_from_digits_marks_and_white_space():
    def num_tokens(character):
        return [len(ours) for ours, _ in fast_bpe.probe(byte_level.PATTERN, [ord(character)])]

    # Of two letters, marks or line breaks and the character: one fewer where no cut is between.
    assert num_tokens("a") == [2, 3, 3]
    assert num_tokens("1") == [3, 3, 3]
    assert num_tokens("#") == [3, 2, 3]
    assert num_tokens("\t") == [3, 3, 2]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_are_those_of_the_reference(tokenizer, text):
    assert tokenizer.engine == "tiktoken"
    assert tokenizer.encode(text).tolist() == tokenizer.encode_by_reference([text])[0].tolist()


@given(st.data())
def test_ids_are_those_of_the_reference_for_any_list_of_merges(data):
    """Also for lists that no training gives; where the fast form is not exact it is not used."""
    tokens, merges = list("abc"), []
    for _ in range(data.draw(st.integers(0, 8))):
        merge = (data.draw(st.sampled_from(tokens)), data.draw(st.sampled_from(tokens)))
        if merge not in merges:
            merges.append(merge)
            tokens.append("".join(merge))
    engine = _of_merges(merges, ignore_merges=data.draw(st.booleans()))
    for letters in itertools.product("abc", repeat=5):
        text = "".join(letters)
        expected = engine.encode_by_reference([text])[0].tolist()
        assert engine.encode_batch([text])[0].tolist() == expected
        if len(engine.encode_by_reference(["a" * 40])[0]) < 40:
            text = text * 5
            expected = engine.encode_by_reference([text])[0].tolist()
            assert engine.encode_batch([text])[0].tolist() == expected


def test_token_that_its_own_bytes_do_not_make_is_left_out():
    # "abc" has no way: a+b comes first, and ab+c is no merge.
    engine = _of_merges([("a", "b"), ("b", "c"), ("a", "bc")])
    assert engine.engine == "tiktoken"
    ids = engine.encode_batch(["abc"])[0]
    assert [engine.token(each) for each in ids] == ["ab", "c"]
    assert ids.tolist() == engine.encode_by_reference(["abc"])[0].tolist()


def test_ids_in_another_order_than_the_merges_are_looked_up(content):
    vocab = content["model"]["vocab"]
    order = np.random.default_rng(0).permutation(len(vocab))
    shuffled = {token: int(order[number]) for token, number in vocab.items()}
    engine = _changed(content, model=content["model"] | {"vocab": shuffled})
    assert engine.engine == "tiktoken"
    text = "def get_config(arg): return arg  # 日本\n"
    ids = engine.encode_batch([text])[0]
    assert ids.dtype == np.uint32
    assert ids.tolist() == engine.encode_by_reference([text])[0].tolist()
    assert engine.decode(ids.tolist()) == text


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"normalizer": {"type": "NFC"}}, "it changes the text first"),
        ({"pre_tokenizer": None}, "it is not byte-level"),
        (
            {
                "pre_tokenizer": {
                    **{"type": "ByteLevel", "add_prefix_space": True},
                    **{"trim_offsets": True, "use_regex": True},
                }
            },
            "puts a space before the text",
        ),
        (
            {
                "added_tokens": [
                    {
                        **{"id": 996, "content": "<t>", "single_word": False, "lstrip": False},
                        **{"rstrip": False, "normalized": False, "special": False},
                    }
                ]
            },
            "added tokens that are read from the text",
        ),
    ],
)
def test_what_the_fast_engine_cannot_do_is_left_to_the_reference(content, parts, reason):
    engine = _changed(content, **parts)
    assert engine.engine.startswith("tokenizers, as ")
    assert reason in engine.engine
    expected = engine.encode_by_reference(["a <t> b"])[0].tolist()
    assert engine.encode_batch(["a <t> b"])[0].tolist() == expected


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"end_of_word_suffix": "</w>"}])
def test_merging_of_other_kinds_is_left_to_the_reference(content, options):
    engine = _changed(content, model=content["model"] | options)
    ((name, value),) = options.items()
    assert engine.engine == f"tokenizers, as it has {name}={value!r}"


@pytest.mark.parametrize("pattern", [byte_level.GPT2_PATTERN, LLAMA3])
def test_text_that_its_regular_expressions_cannot_take_is_left_to_the_reference(content, pattern):
    steps = [
        {
            **{"type": "Split", "pattern": {"Regex": pattern}},
            **{"behavior": "Isolated", "invert": False},
        },
        {
            **{"type": "ByteLevel", "add_prefix_space": False},
            **{"trim_offsets": True, "use_regex": False},
        },
    ]
    engine = _changed(content, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    assert engine.engine == "tiktoken"
    text = " " * 1_200_000 + "x"
    with pytest.raises(ValueError, match=r"[Rr]egex"):
        engine._fast.encode(text)
    ids = engine.encode_batch([text])[0]
    assert np.array_equal(ids, engine.encode_by_reference([text])[0])


@pytest.mark.parametrize("text", ["a" * 200_000, " \n" * 100_000, "日" * 60_000, "!" * 200_000])
def test_long_runs_take_no_longer_than_other_texts_and_give_the_same_ids(tokenizer, text):
    assert np.array_equal(tokenizer.encode(text), tokenizer.encode_by_reference([text])[0])


def test_passed_over_text_is_noticed(content):
    """A pattern that does not match all of a text: the reference keeps the rest as pieces."""
    steps = content["pre_tokenizer"]["pretokenizers"]
    steps = [steps[0] | {"pattern": {"Regex": r"[a-z]+"}}, steps[1]]
    engine = _changed(content, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    assert engine.engine.startswith("tokenizers, as ")


@pytest.mark.shared
def test_byte_tokenizer_without_merges_is_fast_and_total(shared_dir):
    tokenizer = Tokenizer.load(shared_dir / "cases/inputs/SFT-00.tokenizer.json")
    assert tokenizer.engine == "tiktoken"
    assert tokenizer.encode("ok 🦊!<eos>").tolist() == list("ok 🦊!<eos>".encode())
