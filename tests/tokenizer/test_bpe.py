import json
import os
import subprocess
import sys

import pytest

from jaxtrain.tokenizer import bpe


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
    monkeypatch.setattr(bpe, "MAX_TRAINING_BYTES", 10)
    with pytest.raises(
        ValueError, match="must be below 10 bytes, beyond which pair counts overflow"
    ):
        bpe.train(["12345", "6789é"], 300)


def _merges(*texts, num):
    content = bpe.train(texts, 260 + num).files["tokenizer.json"]
    return [tuple(merge) for merge in json.loads(content)["model"]["merges"]]


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
sys.stdout.buffer.write(bpe.train(texts, 1000).files["tokenizer.json"])
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
    assert bpe.train(texts, 500).sha256 == bpe.train(texts[::-1], 500).sha256


def test_lone_surrogate_is_refused_by_name():
    with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at character 0"):
        bpe.train(["fine", "\ud800"], 300)


def test_every_byte_is_covered_so_ids_never_outnumber_bytes(tokenizer):
    for text in ("", "\0", "日本 \U0010ffff", "red fox"):
        assert len(tokenizer.encode(text)) <= len(text.encode())


def test_incomplete_utf8_decodes_to_replacement_characters(tokenizer):
    assert tokenizer.decode(tokenizer.encode("ё")[:1]) == "\ufffd"


def test_nfkc_folds_by_the_standard_and_is_part_of_the_file():
    """TOK-12, with normalization."""
    texts = ["fi 2 ... ﬁ ２ …"] * 3
    plain, folding = bpe.train(texts, 262), bpe.train(texts, 262, normalization="nfkc")
    assert folding.decode(folding.encode("ﬁ ２ …")) == "fi 2 ..."
    assert plain.decode(plain.encode("ﬁ ２ …")) == "ﬁ ２ …"
    assert folding.sha256 != plain.sha256
    assert (plain.normalization, folding.normalization) == ("identity", '{"type": "NFKC"}')


def test_line_breaks_inside_a_json_line_are_characters_of_the_text():
    """CLN-13: U+2028 and U+0085."""
    trained = bpe.train(["up\u2028down\u0085"] * 3, 262)
    assert trained.decode(trained.encode("up\u2028down\u0085")) == "up\u2028down\u0085"


@pytest.mark.shared
def test_the_two_orders_of_the_same_counts_merge_alike(shared_dir):
    """TOK-04: ties first among the pairs of three, then among those of two."""
    for name in ("a", "b"):
        text = (shared_dir / f"cases/inputs/TOK-04.{name}.txt").read_text()
        assert _merges(text, num=4) == [("r", "r"), ("s", "s"), ("p", "p"), ("q", "q")]
