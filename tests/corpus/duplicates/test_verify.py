import numpy as np
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates.candidates import find_groups
from jaxtrain.corpus.duplicates.identity import chunk_of, order_keys, pack, row_of
from jaxtrain.corpus.duplicates.shingles import WORDS, Shingler
from jaxtrain.corpus.duplicates.verify import Measure, verify
from jaxtrain.corpus.executors import LocalExecutor

SHINGLER = Shingler(WORDS, 1)


def _observed(path, texts, fingerprints):
    """A chunk in which every document is a candidate of every other."""
    text, text_ends = pack(texts)
    np.savez(
        path,
        keys=np.full((len(texts), 1), 7, np.uint64),
        fingerprints=np.array(fingerprints, np.uint64),
        num_shingles=[len(each.split()) for each in texts],
        order=order_keys([Document("", each, "", {}) for each in texts]),
        text=text,
        text_ends=text_ends,
    )
    return path


@pytest.fixture
def verified(tmp_path):
    def run(*chunks, threshold=0.5, max_distance=None, num_new=None, fingerprints=(0,) * 9):
        observed = [
            _observed(tmp_path / f"{i}.npz", texts, fingerprints[: len(texts)])
            for i, texts in enumerate(chunks)
        ]
        executor, spill = LocalExecutor(1), tmp_path / "spill"
        number = sum(map(len, chunks))
        removals, counts = verify(
            find_groups(observed, number, 1, executor, spill),
            observed,
            len(chunks) if num_new is None else num_new,
            Measure(SHINGLER, threshold, max_distance),
            executor,
            spill,
        )

        def texts(where):
            at = zip(chunk_of(where).tolist(), row_of(where).tolist(), strict=True)
            return [chunks[chunk][row] for chunk, row in at]

        found = zip(
            texts(removals.places), texts(removals.of), removals.similarities.tolist(), strict=True
        )
        return sorted(found), counts

    return run


def test_candidates_go_where_similarity_reaches_the_threshold(verified):
    texts = ["a b c d", "a b c", "a b x"]
    assert verified(texts, threshold=0.75)[0] == [("a b c", "a b c d", 0.75)]
    assert verified(texts, threshold=0.76)[0] == []
    found, counts = verified(texts, threshold=0.4)
    assert found == [("a b c", "a b c d", 0.75), ("a b x", "a b c d", 0.4)]
    assert (counts.similar, counts.unlike) == (2, 0)


def test_chunks_are_no_difference(verified):
    whole = verified(["a b c d", "a b c", "x y z", "x y"])
    assert verified(["a b c d"], ["x y"], [], ["a b c", "x y z"]) == whole
    assert whole[0] == [("a b c", "a b c d", 0.75), ("x y", "x y z", 2 / 3)]


def test_removed_document_hides_no_other(verified):
    """The middle one is like both ends, which are unlike each other: both ends stay."""
    found, _ = verified(["a b c d e", "c d e f", "e f gg"], threshold=0.4)
    assert found == [("c d e f", "a b c d e", 0.5)]


def test_reference_stays_and_comes_first(verified):
    found, _ = verified(["a b c d e f"], ["a b c d e", "a b c d"], num_new=1)
    assert found == [("a b c d e f", "a b c d e", 5 / 6)]


def test_fingerprints_count_where_a_distance_is_set(verified):
    texts = ["a b c d", "a b c e"]
    assert verified(texts, max_distance=2, fingerprints=[0b111, 0b001])[0] != []
    assert verified(texts, max_distance=1, fingerprints=[0b111, 0b001])[0] == []


def test_no_candidates_give_no_removals(verified):
    assert verified([], []) == ([], (0, 0, 0, 0))
