import json
from dataclasses import replace

import pytest

from jaxtrain.data.metadata import FileInfo, Metadata, Part, StoreError, text_sha256
from jaxtrain.data.store import read_metadata

FILES = {kind: FileInfo(8, kind[0] * 64) for kind in ("tokens", "ends", "names")}
DOCUMENTS = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9], [10, 11]]
MASKS = [[0, 0, 1], [], [0], [1, 0, 1, 1, 0], [0, 1]]


@pytest.fixture
def metadata(tokenization):
    """Makes metadata of one part with these further files."""

    def make(*kinds, answers=None):
        files = FILES | {kind: FileInfo(4, kind[0] * 64) for kind in kinds}
        part = Part("p", 4, 1, 8, files, 2 if {"mask", "weights"} & set(kinds) else None)
        settings = {"adds_eos": True} | ({"answers": answers} if answers else {})
        return Metadata(replace(tokenization, settings=settings), ("t" * 64,), (part,))

    return make


@pytest.mark.parametrize(
    ("kinds", "answers", "version"),
    [
        ((), None, 1),
        (("mask",), None, 2),
        (("weights",), None, 3),
        (("mask", "groups"), "pairs", 3),
        ((), "labels", 3),
        (("mask", "labels"), "steps", 3),
    ],
)
def test_version_is_the_lowest_that_holds_the_content(metadata, kinds, answers, version):
    made = metadata(*kinds, answers=answers)
    assert made.version == version
    assert json.loads(made.to_json())["version"] == version
    assert Metadata.from_json(made.to_json().encode(), "store.json") == made


@pytest.mark.parametrize(
    ("masks", "version", "fingerprint"),
    [
        (None, 1, "4c5a7d653d9dc7fc1b1e0f5103f4e96c0f4d03dd370e8ef4671aa836c08ae1ae"),
        (MASKS, 2, "a74c897067318bb9f2345b9fd6c85576609fe9195b0b692041e98d46f829ae9e"),
    ],
)
def test_stores_without_answers_are_what_they_were_before_there_were_any(
    write_store, masks, version, fingerprint
):
    """The fingerprints are those that the code before format version 3 gave to these stores."""
    path = write_store(f"memory://before_{version}/", DOCUMENTS, masks=masks, part_tokens=5)
    found = read_metadata(path)
    assert (found.version, found.fingerprint) == (version, fingerprint)


def test_fingerprint_changes_with_every_file_and_with_which_it_is(metadata):
    """A file of labels is not one of values, whatever is in them."""
    made = [
        metadata(*kinds, answers="pairs")
        for kinds in ((), ("mask",), ("groups",), ("values",), ("labels",), ("weights",))
    ]
    assert len({each.fingerprint for each in made}) == len(made)
    (part,) = metadata("values").parts
    swapped = replace(part, files=FILES | {"labels": part.files["values"]})
    one, other = (replace(metadata("values"), parts=(each,)) for each in (part, swapped))
    assert one.fingerprint != other.fingerprint


def test_fingerprint_leaves_out_the_names_of_sources(metadata):
    made = metadata("mask")
    (part,) = made.parts
    named = replace(part, files={**part.files, "names": FileInfo(9, "x" * 64)})
    assert replace(made, parts=(named,)).fingerprint == made.fingerprint


@pytest.mark.parametrize("field", ["groups", "values", "weights"])
def test_a_file_that_was_taken_out_of_the_metadata_is_damage(metadata, field):
    value = json.loads(metadata("groups", "values", "weights", answers="pairs").to_json())
    del value["parts"][0]["files"][field]
    with pytest.raises(StoreError, match="do not match its fingerprint"):
        Metadata.from_json(json.dumps(value).encode(), "store.json")


def test_an_older_version_number_on_a_store_of_answers_is_damage(metadata):
    value = json.loads(metadata("groups", answers="pairs").to_json())
    with pytest.raises(StoreError, match="do not match its fingerprint"):
        Metadata.from_json(json.dumps({**value, "version": 2}).encode(), "store.json")


def test_text_in_several_files_has_one_hash_that_keeps_their_order():
    assert text_sha256(["a"]) == "a"
    assert text_sha256(["a", "b"]) != text_sha256(["b", "a"])
