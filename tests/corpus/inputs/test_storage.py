import gzip
import hashlib
import sys
import zlib

import fsspec
import pytest
import zstandard

from jaxtrain.corpus.inputs import storage

_CONTENT = b"".join(b"line %d\n" % number for number in range(200_000))


def _compressed(ending, content):
    if ending == ".gz":
        return gzip.compress(content)
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def _read(path):
    return b"".join(storage.blocks(str(path)))


@pytest.mark.parametrize("ending", storage.COMPRESSED)
def test_compressed_content_is_unpacked_in_bounded_blocks(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(_compressed(ending, _CONTENT))
    assert _read(path) == _CONTENT


@pytest.mark.parametrize("ending", storage.COMPRESSED)
def test_members_one_after_another_are_one_content(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(
        _compressed(ending, b"a\n") + _compressed(ending, b"") + _compressed(ending, b"b")
    )
    assert _read(path) == b"a\nb"


@pytest.mark.parametrize("ending", storage.COMPRESSED)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_what_precedes_a_cut_is_read_and_the_cut_is_noticed(tmp_path, ending, share):
    whole = _compressed(ending, _CONTENT)
    path = tmp_path / f"x{ending}"
    path.write_bytes(whole[: int(len(whole) * share)])
    blocks = []
    with pytest.raises(storage.Damaged, match="cut short"):
        blocks.extend(storage.blocks(str(path)))
    got = b"".join(blocks)
    assert _CONTENT.startswith(got)
    if ending == ".gz":
        assert got == zlib.decompressobj(31).decompress(path.read_bytes())


@pytest.mark.parametrize("ending", storage.COMPRESSED)
def test_what_is_no_archive_or_damaged_inside_is_noticed(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(b"no archive at all, but text")
    with pytest.raises(storage.Damaged, match="is corrupt"):
        _read(path)
    content = bytearray(_compressed(ending, hashlib.sha512(b"x").digest() * 3 + _CONTENT))
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(storage.Damaged):
        _read(path)


@pytest.mark.parametrize(("ending", "limit"), [(".gz", 1 << 20), (".zst", 64 << 20)])
def test_a_highly_compressed_file_comes_in_blocks_of_bounded_size(tmp_path, ending, limit):
    path = tmp_path / f"x{ending}"
    path.write_bytes(_compressed(ending, bytes(200_000_000)))
    sizes = [len(block) for block in storage.blocks(str(path))]
    assert sum(sizes) == 200_000_000
    assert max(sizes) <= limit


def test_padding_behind_an_archive_is_no_damage(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"a") + bytes(512))
    assert _read(tmp_path / "x.gz") == b"a"


def test_files_are_listed_by_name_and_excluded_names_are_left_out(tmp_path):
    for name in ("b/z.txt", "b/a.txt", "a.txt", "skip/x.txt", "b/skip/y.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    top = str(tmp_path)
    below = storage.below(top, ("skip", "*.md"))
    assert below == [f"{top}/a.txt", f"{top}/b/a.txt", f"{top}/b/z.txt"]
    assert storage.matching(f"{top}/**/a.txt") == [f"{top}/a.txt", f"{top}/b/a.txt"]
    assert storage.matching(f"{top}/*") == [f"{top}/a.txt", f"{top}/c.md"]


def test_a_name_with_brackets_is_that_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("x")
    assert storage.matching(f"{tmp_path}/a[1].txt") == [f"{tmp_path}/a[1].txt"]


def test_urls_are_read_as_files_are():
    memory = fsspec.filesystem("memory")
    memory.pipe("/storage-test/sub/b.txt.gz", gzip.compress(b"content"))
    memory.pipe("/storage-test/a.txt", b"a")
    top = storage.normal("memory://storage-test")
    assert storage.is_directory(top)
    assert storage.below(top) == [f"{top}/a.txt", f"{top}/sub/b.txt.gz"]
    assert storage.below(top, ("sub",)) == [f"{top}/a.txt"]
    assert storage.matching("memory://storage-test/**/*.gz") == [f"{top}/sub/b.txt.gz"]
    assert b"".join(storage.blocks(f"{top}/sub/b.txt.gz")) == b"content"
    assert storage.size(f"{top}/a.txt") == 1
    assert storage.sha256(f"{top}/a.txt") == hashlib.sha256(b"a").hexdigest()


def test_url_of_an_unknown_scheme_says_so():
    with pytest.raises(ValueError, match=r"^nonsense://a/b cannot be opened: .*nonsense"):
        storage.size("nonsense://a/b")


def test_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    (tmp_path / "x.zst").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"x\.zst needs `pip install zstandard`"):
        _read(tmp_path / "x.zst")
    with pytest.raises(ValueError, match=r"s3://a/b cannot be opened: .*fsspec"):
        storage.size("s3://a/b")
