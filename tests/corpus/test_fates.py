import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.fates import Fate, Fates, read_fates, text_hash
from jaxtrain.corpus.step import Outcome


def _documents(texts):
    return [Document(f"d{i}", text, "s", {}) for i, text in enumerate(texts)]


def _judge(documents, kept):
    return [
        Outcome(each) if keep else Outcome(each, "short", "3 < 4")
        for each, keep in zip(documents, kept, strict=True)
    ]


def test_every_document_has_the_fate_that_the_steps_gave_it(tmp_path):
    documents = _documents(["one", "two", "three"])
    fates = Fates(documents)
    fates.record("length", _judge(documents, [True, False, True]))
    left = [documents[0], documents[2]._replace(text="THREE")]
    fates.record("case", [Outcome(each) for each in left])
    fates.write(["train", "heldout"], left)
    fates.save(tmp_path / "f.parquet")
    assert list(read_fates(tmp_path / "f.parquet")) == [
        Fate("d0", text_hash("one"), output="train"),
        Fate("d1", text_hash("two"), step="length", rule="short"),
        Fate("d2", text_hash("three"), output="heldout", new_text_hash=text_hash("THREE")),
    ]


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_pass_goes_on_from_the_file_of_the_one_before(tmp_path_factory, kept):
    folder = tmp_path_factory.mktemp("fates")
    documents = _documents(map(str, range(len(kept))))
    whole, first = Fates(documents), Fates(documents)
    outcomes = _judge(documents, [a for a, _ in kept])
    left = [each for each, (a, _) in zip(documents, kept, strict=True) if a]
    later = _judge(left, [b for a, b in kept if a])
    whole.record("one", outcomes)
    whole.record("two", later)
    first.record("one", outcomes)
    first.save(folder / "first")
    second = Fates.load(folder / "first")
    second.record("two", later)
    whole.save(folder / "a")
    second.save(folder / "b")
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    assert [fate.step for fate in read_fates(folder / "b")] == [
        "one" if not a else None if b else "two" for a, b in kept
    ]


def test_ids_may_repeat(tmp_path):
    twins = [Document("d", text, "s", {}) for text in "ab"]
    fates = Fates(twins)
    fates.record("length", _judge(twins, [False, True]))
    fates.write(["train"], twins[1:])
    fates.save(tmp_path / "f")
    assert [fate.output for fate in read_fates(tmp_path / "f")] == [None, "train"]


def test_document_lost_between_two_steps_is_found():
    documents = _documents("ab")
    fates = Fates(documents)
    with pytest.raises(AssertionError, match="length: 2 documents were left, others came: 1"):
        fates.record("length", _judge(documents[:1], [True]))


def test_documents_in_another_order_are_found():
    documents = _documents("ab")
    fates = Fates(documents)
    with pytest.raises(AssertionError, match="output: 2 documents were left"):
        fates.write(["train", "train"], documents[::-1])
