import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxtrain.tokenizer import bpe

_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(_text)
@example("")
@example("a  b\n\tc ")
@example("\u0000\r\n\u2028\u0085\ufeff\ufffd")
@example("ﬁ ２ … e\u0301 é \u3000 👩‍🚀")
@example("<|eos|> my reds and oaks<|pad|>")
def test_any_text_round_trips_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("num_spaces", range(4))
def test_leading_spaces_survive_alone_and_after_a_control_token(tokenizer, num_spaces):
    text = " " * num_spaces + "hello"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([tokenizer.control_id(bpe.EOS), *ids]) == bpe.EOS + text


@given(_text)
def test_every_byte_is_covered_so_ids_never_outnumber_bytes(tokenizer, text):
    assert len(tokenizer.encode(text)) <= len(text.encode())


@pytest.mark.parametrize("name", bpe.CONTROL_TOKENS)
def test_text_that_looks_like_a_control_token_stays_text(tokenizer, name):
    control_ids = {tokenizer.control_id(each) for each in bpe.CONTROL_TOKENS}
    for text in (name, f"a {name} b", name * 3):
        ids = tokenizer.encode(text)
        assert not control_ids & set(ids.tolist())
        assert tokenizer.decode(ids) == text


def test_control_ids_are_the_last_of_the_vocabulary(tokenizer):
    ids = [tokenizer.control_id(name) for name in bpe.CONTROL_TOKENS]
    assert tokenizer.vocab_size == 300
    assert ids == [296, 297, 298, 299]


def test_unknown_control_token_is_refused(tokenizer):
    with pytest.raises(ValueError, match="'the' is no control token"):
        tokenizer.control_id("the")


def test_batch_gives_the_ids_of_each_text_alone(tokenizer):
    texts = ["", " red", "old oak\n\n", "日本"]
    batch = tokenizer.encode_batch(texts)
    assert all(ids.dtype == np.uint32 for ids in batch)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]


def test_lone_surrogate_is_refused_by_name(tokenizer):
    with pytest.raises(ValueError, match=r"lone surrogate U\+DC80 at character 2"):
        tokenizer.encode("ab\udc80")
    with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at character 0"):
        bpe.train(["fine", "\ud800"], 300)


@pytest.mark.parametrize("bad", [300, -1])
def test_id_outside_the_vocabulary_is_refused(tokenizer, bad):
    with pytest.raises(ValueError, match=f"id {bad} is not below the vocabulary's 300"):
        tokenizer.decode([1, bad])


def test_incomplete_utf8_decodes_to_replacement_characters(tokenizer):
    assert tokenizer.decode(tokenizer.encode("ё")[:1]) == "\ufffd"


def test_saved_file_is_read_back_as_the_same_tokenizer(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = bpe.Tokenizer.load(path)
    assert loaded.sha256 == tokenizer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.encode("red <|eos|>").tolist() == tokenizer.encode("red <|eos|>").tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"version": "1.0", "trunc', r"tokenizer\.json is not a usable tokenizer"),
        (b"{}", r"tokenizer\.json is not a usable tokenizer"),
        (None, r"tokenizer\.json is not a usable tokenizer: lacks the control tokens <\|pad\|>"),
    ],
)
def test_file_that_is_no_tokenizer_of_this_kind_is_refused(tokenizer, tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content or tokenizer.serialized.replace(b"<|pad|>", b"<|fill|>"))
    with pytest.raises(ValueError, match=message):
        bpe.Tokenizer.load(path)


def test_size_below_all_bytes_is_refused_before_any_text_is_read():
    def unread():
        raise AssertionError("read")
        yield

    with pytest.raises(ValueError, match="vocab_size=259 must be at least 260"):
        bpe.train(unread(), 259)


def test_size_beyond_what_the_text_supports_names_the_largest():
    with pytest.raises(ValueError, match="vocab_size=300 must be at most 262 for this text"):
        bpe.train(["abc abc"], 300)  # b+c, a+bc and nothing else occurs twice
    assert bpe.train(["abc abc"], 262).vocab_size == 262


def test_smallest_vocabulary_is_bytes_and_control_tokens(tokenizer):
    assert len(bpe.train(["text"], 260).encode("日 a")) == len("日 a".encode())


def test_training_text_too_long_to_count_is_refused(monkeypatch):
    monkeypatch.setattr(bpe, "_MAX_TRAINING_BYTES", 10)
    with pytest.raises(
        ValueError, match="must be below 10 bytes, beyond which pair counts overflow"
    ):
        bpe.train(["12345", "6789é"], 300)


def _merges(*texts, num):
    serialized = bpe.train(texts, 260 + num).serialized
    return [tuple(merge) for merge in json.loads(serialized)["model"]["merges"]]


def test_ties_are_broken_by_id_and_not_by_first_appearance():
    # Four runs: two pairs occur three times, two occur twice; each tie goes to the lower id.
    expected = [("r", "r"), ("s", "s"), ("p", "p"), ("q", "q")]
    assert _merges("qqqpppssssrrrr", num=4) == expected
    assert _merges("pppqqqrrrrssss", num=4) == expected
    assert _merges("rrrr", "qqq", "ssss", "ppp", num=4) == expected


def test_most_frequent_pair_is_merged_first():
    # An independent count: (x,y) 4 times, then (xy,z) 3 times, then (a,b) twice.
    assert _merges("xyz", "xyz", "xyz", "xy", "ab", "ab", num=3) == [
        ("x", "y"),
        ("xy", "z"),
        ("a", "b"),
    ]


_TRAIN = """
import sys
from jaxtrain.tokenizer import bpe
texts = [open(name, encoding="utf-8").read() for name in sys.argv[1:]]
sys.stdout.buffer.write(bpe.train(texts, 1000).serialized)
"""


def test_file_is_byte_identical_across_processes_threads_and_hash_seeds(root_dir):
    names = sorted(map(str, root_dir.glob("jaxtrain/*.py")))
    trained = set()
    for threads, seed in (("1", "1"), ("8", "2"), ("8", "3")):
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        output = subprocess.run(
            [sys.executable, "-c", _TRAIN, *names],
            cwd=root_dir,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        trained.add(output.stdout)
    assert len(trained) == 1


def test_order_of_the_texts_does_not_change_the_file(root_dir):
    texts = [path.read_text(encoding="utf-8") for path in sorted(root_dir.glob("jaxtrain/*.py"))]
    assert bpe.train(texts, 500).serialized == bpe.train(texts[::-1], 500).serialized


@pytest.mark.reference
def test_transformers_reads_the_file_and_gives_the_same_ids(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in ("hello", "   hello", "The red fox — 日本 👩‍🚀\n\n"):
        assert theirs(text)["input_ids"] == tokenizer.encode(text).tolist()
        assert theirs.decode(theirs(text)["input_ids"], clean_up_tokenization_spaces=False) == text
