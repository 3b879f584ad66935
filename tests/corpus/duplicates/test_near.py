import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates import shuffle, verify
from jaxtrain.corpus.duplicates.near import NearDuplicates
from jaxtrain.corpus.duplicates.shingles import WORDS, Shingler
from jaxtrain.corpus.duplicates.sketches import MinHash, SimHash
from jaxtrain.corpus.executors import LocalExecutor

THRESHOLD = 0.6
SKETCHES = {
    "minhash": MinHash(Shingler(WORDS, 2), bands=6, rows=3, seed=1),
    "simhash": SimHash(Shingler(WORDS, 2), max_distance=7),
}
WORDS_OF = st.lists(st.sampled_from("abc"), max_size=7).map(" ".join)


def _step(sketch="minhash"):
    return NearDuplicates("near-duplicate", SKETCHES[sketch], THRESHOLD)


def _shingles(text):
    words = text.split()
    return {tuple(words[i : i + 2]) for i in range(max(len(words) - 1, min(len(words), 1)))}


def _similarity(first, second):
    one, other = _shingles(first), _shingles(second)
    return len(one & other) / len(one | other) if one | other else 0.0


def _documents(texts):
    return [Document(f"d{i}", text, "web", {}) for i, text in enumerate(texts)]


def _cut(documents, points):
    edges = [0, *sorted(points), len(documents)]
    return [documents[a:b] for a, b in itertools.pairwise(edges)]


@pytest.fixture(scope="module")
def variants():
    """Three hundred documents, two hundred of them with one to six words changed."""
    rng = random.Random(0)
    texts = [" ".join(f"w{rng.randrange(5_000)}" for _ in range(60)) for _ in range(100)]
    for text in [*texts]:
        for _ in range(2):
            words = text.split()
            for _ in range(rng.randrange(1, 7)):
                words[rng.randrange(60)] = f"w{rng.randrange(5_000)}"
            texts.append(" ".join(words))
    rng.shuffle(texts)
    return _documents(texts)


@pytest.mark.parametrize("sketch", SKETCHES)
@settings(max_examples=25)
@given(texts=st.lists(WORDS_OF, min_size=1, max_size=10), data=st.data())
def test_result_does_not_depend_on_order_or_chunks(sketch, judge, texts, data):
    documents = _documents(texts)
    whole = judge(_step(sketch), documents)
    other = data.draw(st.permutations(documents))
    points = data.draw(st.lists(st.integers(0, len(documents)), max_size=3))
    again = judge(_step(sketch), *_cut(other, points))
    assert {each.id for each in again.kept} == {each.id for each in whole.kept}
    assert again.removed == whole.removed
    assert again.figures == whole.figures


@pytest.mark.parametrize("sketch", SKETCHES)
@settings(max_examples=25)
@given(texts=st.lists(WORDS_OF, min_size=1, max_size=10))
def test_second_pass_removes_nothing_and_each_removed_one_is_similar_to_a_kept_one(
    sketch, judge, texts
):
    documents = _documents(texts)
    first = judge(_step(sketch), documents)
    assert judge(_step(sketch), first.kept).removed == {}
    text_of = {each.id: each.text for each in first.kept}
    for identity, because in first.removed.items():
        _, value, _, of = because.split()
        similarity = _similarity(text_of[of], documents[int(identity[1:])].text)
        assert similarity >= THRESHOLD
        assert value == f"{similarity:.3f}"


def test_result_does_not_depend_on_workers_partitions_or_bundles(judge, variants, monkeypatch):
    whole = judge(_step(), variants)
    assert 100 < len(whole.removed) < 200
    executor = LocalExecutor(2)
    try:
        spread = judge(_step(), *_cut(variants, [50, 200, 201]), executor=executor)
    finally:
        executor.close()
    monkeypatch.setattr(shuffle, "PARTITION_BYTES", 1_000)
    monkeypatch.setattr(verify, "_BUNDLE_DOCUMENTS", 5)
    small = judge(_step(), *_cut(variants, [50, 200, 201]))
    for other in (spread, small):
        assert other.outcomes == whole.outcomes
        assert other.figures == whole.figures


def test_documents_without_shingles_stay_and_are_counted(judge):
    result = judge(_step(), _documents(["", " \n\t", "!!! ???", "!!! ???", "a b"]))
    assert result.removed == {}
    assert result.figures["documents"] == 5
    assert result.figures["documents_without_shingles"] == 4


def test_no_documents_are_no_error(judge):
    assert judge(_step()).figures["documents"] == 0
    assert judge(_step(), []).outcomes == []


def test_figures_add_up(judge, variants):
    result = judge(_step(), variants)
    figures = result.figures
    assert figures["duplicates"] == figures["comparisons_similar"] == len(result.removed)
    clusters = {int(size): number for size, number in figures["cluster_sizes"].items()}
    assert sum((size - 1) * number for size, number in clusters.items()) == len(result.removed)
    assert len(figures["candidate_pairs_by_band"]) == 6
    assert figures["settings"]["threshold"] == THRESHOLD


@pytest.mark.parametrize("similar", [True, False])
def test_page_of_a_thousand_copies_or_of_one_template_costs_a_bounded_number_of_comparisons(
    judge, similar
):
    """All share a band; alike or not, none is compared with more than MAX_LEADERS a band."""
    template = " ".join(f"t{i}" for i in range(40))
    own = 2 if similar else 40
    texts = [template + "".join(f" d{d}x{i}" for i in range(own)) for d in range(400)]
    figures = judge(_step(), _documents(texts)).figures
    asked = figures["comparisons_similar"] + figures["comparisons_not_similar"]
    if similar:
        assert figures["duplicates"] == asked == 399
    else:
        assert figures["duplicates"] == 0
        assert figures["largest_band_group"] > 64
        assert figures["full_band_groups"] > 0
        assert asked <= 400 * 64 * 6
