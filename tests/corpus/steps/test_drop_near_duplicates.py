import dataclasses
import gzip
import itertools
import json
import math

import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates.minhash import probability_of_sharing_a_band
from jaxtrain.corpus.steps.drop_near_duplicates import PRESETS, Config, make

HAN = "人人生而自由在尊严和权利上一律平等他们赋有理性和良心并应以兄弟关系的精神相对待"


def _step(**options):
    return make(Config(**options), None)


def _documents(texts):
    return [Document(f"d{i}", text, "web", {}) for i, text in enumerate(texts)]


def _planted(pairs, similarity):
    """Pairs of texts of 100 5-word shingles together, and of nothing in common with other pairs."""
    shared, own = round(100 * similarity) + 4, round(50 * (1 - similarity))
    texts = []
    for pair in range(pairs):
        common = " ".join(f"p{pair}w{i}" for i in range(shared))
        texts += [
            f"{common} {' '.join(f'p{pair}{side}{i}' for i in range(own))}" for side in ("a", "b")
        ]
    return texts


@pytest.mark.parametrize("similarity", [0.7, 0.8, 0.9])
def test_planted_duplicates_are_found_as_often_as_predicted(judge, similarity):
    pairs, preset = 600, PRESETS["fineweb"]
    documents = _documents(_planted(pairs, similarity))
    result = judge(_step(threshold=similarity), documents[:500], documents[500:])
    for identity, because in result.removed.items():
        partner = int(identity[1:]) ^ 1
        assert because == f"similarity {similarity:.3f} to d{partner}"  # never an unrelated one
    p = probability_of_sharing_a_band(similarity, preset.bands, preset.rows)
    assert abs(len(result.removed) - pairs * p) <= 4 * math.sqrt(pairs * p * (1 - p)) + 1


def test_pairs_under_the_threshold_both_stay(judge):
    result = judge(_step(threshold=0.81), _documents(_planted(200, 0.8)))
    assert result.removed == {}
    assert result.figures["comparisons_not_similar"] > 100


def test_threshold_of_one_removes_equal_sets_of_shingles_alone(judge):
    """CLN-07."""
    text = " ".join(f"w{i}" for i in range(50))
    texts = [text, text.upper(), f"{text} more"]
    result = judge(_step(threshold=1.0), _documents(texts))
    assert len(result.removed) == 1
    assert result.outcomes[2].dropped is None


@pytest.mark.parametrize("threshold", [0.0, 1.01, -1.0, math.nan])
def test_threshold_that_cannot_work_is_refused_in_one_line(threshold):
    """CLN-07."""
    with pytest.raises(ValueError, match=r"threshold=.* must be above 0 and at most 1; 0.8 is"):
        Config(threshold=threshold)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "best"}, "preset='best' must be one of fineweb, characters, nemo, lee"),
        ({"unit": "lines"}, "unit='lines' must be one of words, characters"),
        ({"bands": 0}, "bands=0 must be at least 1, or None for the preset's"),
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"shingle_size": -5}, "shingle_size=-5 must be at least 1"),
        ({"seed": -1}, "seed=-1 must lie between 0"),
        ({"reference": ("a/", "b"), "save_index": "a"}, "save_index=a is a reference"),
    ],
)
def test_values_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


@pytest.mark.parametrize(
    ("preset", "hashes", "shingles"),
    [
        ("fineweb", 112, ("words", 5)),
        ("characters", 128, ("characters", 5)),
        ("nemo", 260, ("characters", 24)),
        ("lee", 9_000, ("words", 5)),
    ],
)
def test_presets_are_the_published_ones(preset, hashes, shingles):
    sketch = Config(preset=preset).sketch
    assert sketch.bands * sketch.rows == hashes
    assert dataclasses.astuple(sketch.shingler) == shingles


def test_single_values_override_the_preset():
    sketch = Config(preset="nemo", rows=5, unit="words").sketch
    assert (sketch.shingler.unit, sketch.shingler.size, sketch.bands, sketch.rows) == (
        "words",
        24,
        20,
        5,
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_chinese_text_with_a_character_changed_goes(judge, preset):
    longer = "".join(HAN[i:] + HAN[:i] for i in range(len(HAN)))
    texts = [longer, longer.replace("。", "，"), f"{longer[:400]}不{longer[401:]}", longer[::-1]]
    result = judge(_step(preset=preset), _documents(texts))
    assert len(result.removed) == 2
    assert result.outcomes[3].dropped is None


def test_card_says_what_the_setting_promises(judge):
    promised = judge(_step(), []).figures["expected_share_of_pairs_found_by_similarity"]
    assert promised["0.7"] == pytest.approx(0.565, abs=6e-4)
    assert promised["0.8"] == pytest.approx(0.924, abs=6e-4)


def test_reference_that_is_none_is_refused(tmp_path):
    expected = f"^reference: {tmp_path} has neither index.json nor"
    with pytest.raises(ValueError, match=expected):
        _step(reference=(str(tmp_path),))


def _five_grams(text):
    """Runs of five words as tuples, Chinese characters as words: an independent measure."""
    words, word = [], ""
    for letter in text.lower() + " ":
        is_han = "\u4e00" <= letter <= "\u9fff" or "\u3400" <= letter <= "\u4dbf"
        if letter.isalnum() and not is_han:
            word += letter
        else:
            words += [word] * bool(word) + [letter] * is_han
            word = ""
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


@pytest.mark.shared
def test_real_versions_of_a_document_are_found_and_nothing_else(judge, shared_dir):
    """Recall: of pairs of one group and similarity ≥ 0.8, those of which at most one stays.

    Precision: of removed documents, those that name one of their own group.
    """
    similar = missed = removed = wrong = 0
    for name in ("en-trl-docs", "zh-rust-book"):
        path = shared_dir / "data" / "neardup" / f"{name}.jsonl.gz"
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        documents = [Document(row["id"], row["text"], name, {}) for row in rows]
        result = judge(_step(), documents)
        group = {row["id"]: row["group"] for row in rows}
        grams = {row["id"]: _five_grams(row["text"]) for row in rows}
        kept = {document.id for document in result.kept}
        for one, other in itertools.combinations(group, 2):
            first, second = grams[one], grams[other]
            if group[one] == group[other] and len(first & second) >= 0.8 * len(first | second):
                similar += 1
                missed += one in kept and other in kept
        for identity, because in result.removed.items():
            of = because.partition(" to ")[2]
            first, second = grams[identity], grams[of]
            assert len(first & second) / len(first | second) > 0.79
            removed += 1
            wrong += group[identity] != group[of]
    assert similar > 250
    assert missed <= 0.05 * similar
    assert wrong <= 0.01 * removed
