import gzip
import io

import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, Skipped, plan, read

pytest.importorskip("warcio")
pytest.importorskip("resiliparse")

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

_PAGE = "<html><body><p>Straße, naïve, 5 €</p></body></html>"


def _response(writer, payload, status="200 OK", content_type="text/html", headers=(), **warc):
    http = StatusAndHeaders(status, [("Content-Type", content_type), *headers], protocol="HTTP/1.1")
    record = writer.create_warc_record(
        "http://example.org/",
        "response",
        payload=io.BytesIO(payload),
        http_headers=http,
        warc_headers_dict={"WARC-Date": "2024-05-01T00:00:00Z", **warc},
    )
    writer.write_record(record)


def _write(path, *responses, compressed=True):
    with open(path, "wb") as file:
        writer = WARCWriter(file, gzip=compressed)
        writer.write_record(writer.create_warcinfo_record("x.warc", {"software": "test"}))
        for response in responses:
            _response(writer, **response)


def _items(path, **options):
    reading = ReadingConfig(malformed="count", **options)
    return [item for unit in plan([str(path)], reading) for item in read(unit, reading)]


@pytest.mark.parametrize("name", ["x.warc.gz", "x.warc"])
def test_page_is_its_html_and_leads_back_to_its_record(tmp_path, name):
    _write(tmp_path / name, *[{"payload": _PAGE.encode()}] * 2, compressed=name.endswith("gz"))
    first, second = _items(tmp_path / name)
    assert first.text == second.text == _PAGE
    assert first.metadata == {
        "mime": "text/html",
        "url": "http://example.org/",
        "date": "2024-05-01T00:00:00Z",
        "origin": first.id,
    }
    offset = int(second.id.removeprefix(f"{name}:"))
    content = (tmp_path / name).read_bytes()[offset:]
    record = gzip.decompress(content) if name.endswith("gz") else content
    assert record.startswith(b"WARC/1.")
    assert record.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("encoding", "content_type", "html"),
    [
        ("cp1252", "text/html; charset=ISO-8859-1", _PAGE),
        ("utf-16", "text/html; charset=utf-16", _PAGE),
        ("gb18030", "text/html", f"<meta charset=gbk>{'中文网页' * 20}"),
        ("utf-8", "text/html; charset=iso-8859-1", _PAGE),
        ("utf-8", "text/html; charset=nonsense", _PAGE),
    ],
)
def test_page_is_decoded_as_a_browser_does(tmp_path, encoding, content_type, html):
    _write(tmp_path / "x.warc.gz", {"payload": html.encode(encoding), "content_type": content_type})
    [page] = _items(tmp_path / "x.warc.gz")
    assert page.text == html


def test_compressed_payload_is_unpacked(tmp_path):
    payload = gzip.compress(_PAGE.encode())
    _write(tmp_path / "x.warc.gz", {"payload": payload, "headers": [("Content-Encoding", "gzip")]})
    assert _items(tmp_path / "x.warc.gz")[0].text == _PAGE


def test_what_is_no_page_is_counted_by_reason(tmp_path):
    _write(
        tmp_path / "x.warc.gz",
        {"payload": b"gone", "status": "404 Not Found"},
        {"payload": b"\x89PNG", "content_type": "image/png"},
        {"payload": b"?", "headers": [("Content-Encoding", "zstd-made-up")]},
        {"payload": b""},
        {"payload": b"%PDF", "WARC-Identified-Payload-Type": "application/pdf"},
        {"payload": b"plain", "content_type": "text/plain; charset=utf-8"},
    )
    items = _items(tmp_path / "x.warc.gz")
    assert [item.reason for item in items if isinstance(item, Skipped)] == [
        "HTTP status not 200",
        "neither HTML nor text",
        "unknown content encoding",
        "empty text",
        "neither HTML nor text",
    ]
    [page] = [item for item in items if isinstance(item, Document)]
    assert (page.text, page.metadata["mime"]) == ("plain", "text/plain")


def test_too_long_page_is_malformed(tmp_path):
    _write(tmp_path / "x.warc.gz", {"payload": b"a" * 101}, {"payload": b"a" * 100})
    long, page = _items(tmp_path / "x.warc.gz", max_document_bytes=100)
    assert (long.reason, len(page.text)) == ("too long", 100)


@pytest.mark.parametrize("compressed", [True, False])
def test_pages_before_a_cut_are_kept_and_the_cut_is_counted(tmp_path, compressed):
    path = tmp_path / ("x.warc.gz" if compressed else "x.warc")
    _write(path, *[{"payload": (_PAGE * 50).encode()}] * 3, compressed=compressed)
    path.write_bytes(path.read_bytes()[:-40])
    *pages, fault = _items(path)
    assert [page.text for page in pages] == [_PAGE * 50] * 2
    assert isinstance(fault, Malformed)
    assert fault.reason == "damaged file"


def test_file_that_is_no_warc_is_damaged(tmp_path):
    (tmp_path / "x.warc").write_bytes(b"hello world\n" * 10)
    [fault] = _items(tmp_path / "x.warc")
    assert fault.reason == "damaged file"


@pytest.mark.shared
def test_real_files_are_read_whole(shared_dir):
    pages = _items(shared_dir / "data/web/*.warc.gz")
    assert len(pages) == 42
    assert all(isinstance(page, Document) for page in pages)
    [text] = _items(shared_dir / "data/web/whirlwind.warc.wet.gz")
    assert text.text.startswith("Escopete - Biquipedia")
    assert text.metadata["mime"] == "text/plain"
