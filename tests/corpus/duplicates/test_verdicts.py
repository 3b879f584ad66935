import numpy as np

from jaxtrain.corpus.duplicates.identity import pack, places
from jaxtrain.corpus.duplicates.verdicts import (
    Removals,
    cluster_sizes,
    read_verdicts,
    write_verdicts,
)


def _removals(*rows):
    duplicates, kept, similarities = zip(*rows, strict=True)
    where = [
        np.array([int(places(c, np.int64(r))) for c, r in each]) for each in (duplicates, kept)
    ]
    return Removals(*where, np.array(similarities))


def test_verdicts_come_back_by_chunk_and_row_with_the_ids_of_what_is_kept(tmp_path):
    chunks = []
    for number, ids in enumerate((["a", "b"], ["c", "ü", ""], ["reference"])):
        packed, ends = pack(ids)
        chunks.append(tmp_path / f"{number}.npz")
        np.savez(chunks[-1], ids=packed, id_ends=ends)
    removals = _removals(((1, 2), (0, 1), 0.9), ((0, 0), (2, 0), 1.0), ((1, 0), (1, 1), 0.8))
    write_verdicts(tmp_path, removals, chunks[:2], chunks[2:])
    assert read_verdicts(tmp_path, 0) == {0: ("reference", 1.0, True)}
    assert read_verdicts(tmp_path, 1) == {2: ("b", 0.9, False), 0: ("ü", 0.8, False)}


def test_clusters_are_counted_by_size():
    removals = _removals(*(((0, row), (1, row // 3), 1.0) for row in range(7)))
    assert cluster_sizes(removals) == {"2": 1, "4": 2}
