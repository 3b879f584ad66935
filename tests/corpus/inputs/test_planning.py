import gzip
import json
import pickle
import random

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxtrain.corpus.inputs import ReadingConfig, plan

_READING = ReadingConfig()


def _write(top, *names, content=b'{"text": "a"}\n'):
    for name in names:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def _parts(inputs, reading=_READING, unit_bytes=None):
    return [
        part for unit in plan([str(i) for i in inputs], reading, unit_bytes) for part in unit.parts
    ]


def test_files_of_a_glob_come_by_name_whatever_the_order_of_the_file_system(tmp_path):
    names = [f"shard/{number:02}.jsonl" for number in range(12)]
    _write(tmp_path, *random.Random(0).sample(names, len(names)))
    parts = _parts([tmp_path / "**/*.jsonl"])
    assert [part.name for part in parts] == names
    assert _parts([tmp_path / "shard/*.jsonl"])[0].name == "00.jsonl"


def test_names_do_not_depend_on_where_the_data_lies(tmp_path):
    _write(tmp_path, "one/d/x.jsonl", "two/far/d/x.jsonl")
    one = _parts([tmp_path / "one/d/*.jsonl"])
    two = _parts([tmp_path / "two/far/d/*.jsonl"])
    assert [part._replace(file="") for part in one] == [part._replace(file="") for part in two]


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    _write(tmp_path, "a/x.jsonl", "b/x.jsonl", "b/y.jsonl")
    parts = _parts([tmp_path / "a/x.jsonl", tmp_path / "b/*.jsonl"])
    assert [part.name for part in parts] == ["a/x.jsonl", "b/x.jsonl", "b/y.jsonl"]


def test_source_is_the_given_name_else_the_file_or_the_folder_of_the_glob(tmp_path):
    _write(tmp_path, "web/x.en.jsonl", "web/y.jsonl")
    given, file, glob = (
        _parts([spec])[0]
        for spec in (f"cc-2024={tmp_path}/web/*", tmp_path / "web/x.en.jsonl", tmp_path / "web/*")
    )
    assert (given.source, given.is_named) == ("cc-2024", True)
    assert (file.source, file.is_named) == ("x", False)
    assert glob.source == "web"


def test_equals_sign_in_a_folder_is_no_name(tmp_path):
    _write(tmp_path, "lang=en/x.jsonl")
    assert _parts([tmp_path / "lang=en/*.jsonl"])[0].is_named is False


def test_large_json_lines_are_cut_into_ranges_and_compressed_ones_are_not(tmp_path):
    _write(tmp_path, "a.jsonl", "b.jsonl.gz", content=b'{"text": "abcdefgh"}\n' * 10)
    parts = _parts([tmp_path / "*"], unit_bytes=100)
    assert [(part.start, part.stop) for part in parts] == [
        (0, 100),
        (100, 200),
        (200, 210),
        (0, None),
    ]


def test_small_files_share_a_unit_and_units_hold_every_part_once_in_order(tmp_path):
    _write(
        tmp_path, *(f"{number:02}.jsonl" for number in range(10)), content=b'{"text": "a"}\n' * 2
    )
    units = plan([f"{tmp_path}/*"], _READING, unit_bytes=100)
    assert [len(unit.parts) for unit in units] == [3, 3, 3, 1]
    assert [part.name for unit in units for part in unit.parts] == [
        f"{n:02}.jsonl" for n in range(10)
    ]
    assert units[0].num_bytes == 3 * 28
    assert pickle.loads(pickle.dumps(units)) == units


def test_parquet_is_cut_at_row_groups(tmp_path):
    table = pa.table({"text": [f"{number} " * 100 for number in range(50)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10, use_dictionary=False)
    parts = _parts([tmp_path / "x.parquet"], unit_bytes=1)
    assert [(part.start, part.stop) for part in parts] == [(n, n + 1) for n in range(5)]
    assert [(p.start, p.stop) for p in _parts([tmp_path / "x.parquet"])] == [(0, 5)]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.jsonl.zst", b"", "json_lines"),
        ("x.JSONL", b"", "json_lines"),
        ("x.json", b'\n {"text": "a"}', "json_lines"),
        ("x.json.gz", b' [{"text": "a"}]', "json_array"),
        ("x.md", b"# a", "text"),
        ("x.warc.gz", b"", "warc"),
    ],
)
def test_format_is_told_by_the_ending(tmp_path, name, content, expected):
    _write(tmp_path, name, content=content)
    assert _parts([tmp_path / name])[0].format == expected
    if expected != "json_array":
        assert _parts([tmp_path / name], ReadingConfig(format="text"))[0].format == "text"


def test_folder_is_a_source_tree_without_what_is_excluded(tmp_path):
    _write(
        tmp_path,
        "a.py",
        "sub/b.c",
        ".git/config",
        "node_modules/x.js",
        "sub/build/y.c",
        "data.json",
    )
    parts = _parts([tmp_path])
    assert [part.name for part in parts] == ["a.py", "data.json", "sub/b.c"]
    assert {part.format for part in parts} == {"code"}
    assert parts[0].source == tmp_path.name


def test_folder_that_prepare_wrote_is_its_training_documents(tmp_path):
    _write(
        tmp_path, "card.json", "heldout/00000.parquet", "train/00001.parquet", "train/00000.parquet"
    )
    parts = _parts([f"{tmp_path}/"])
    assert [part.name for part in parts] == ["train/00000.parquet", "train/00001.parquet"]
    assert {part.format for part in parts} == {"parquet"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"^inputs is empty; give at least one path"),
        ([""], r"^inputs holds ''; give \[name=\]path"),
        (["{top}/*.parquet"], r"^inputs: .*/\*\.parquet matches no file; correct"),
        (["{top}/x.jsonl", "{top}/*.jsonl"], r"^inputs match .*x\.jsonl more than once"),
        (
            ["{top}/x.bin"],
            r"^inputs: .*x\.bin has none of the endings \.jsonl.*config\.reading\.format",
        ),
        (["{top}/sub"], r"^inputs: .*/sub is a folder with data such as .*y\.jsonl; give a glob"),
        (["{top}/empty"], r"^inputs: .*/empty matches no file"),
    ],
)
def test_input_that_cannot_be_meant_is_refused(tmp_path, given, message):
    _write(tmp_path, "x.jsonl", "x.bin", "sub/y.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        plan([each.format(top=tmp_path) for each in given], _READING)


def test_object_storage_is_planned_like_a_folder():
    memory = fsspec.filesystem("memory")
    rows = "".join(json.dumps({"text": "a"}) + "\n" for _ in range(10)).encode()
    for name in ("b.jsonl", "a/x.jsonl"):
        memory.pipe(f"/planning-test/{name}", rows)
    parts = _parts(["web=memory://planning-test/**/*.jsonl"], unit_bytes=100)
    assert [(p.name, p.start) for p in parts] == [
        ("a/x.jsonl", 0),
        ("a/x.jsonl", 100),
        ("b.jsonl", 0),
        ("b.jsonl", 100),
    ]
    assert parts[0].source == "web"
