"""WARC, what crawlers write: pages as their servers sent them, or (WET) as text.

The text of a page is its HTML; the step `extract_html` makes prose of it, told by the field `mime`.
Offsets are those of records in the file as it is stored: a tool can seek there.
"""

import importlib.util
from typing import Any

from jaxtrain.corpus.inputs import storage
from jaxtrain.corpus.inputs.reading import (
    Fault,
    Item,
    Items,
    Malformed,
    Part,
    ReadingConfig,
    Skipped,
)
from jaxtrain.corpus.inputs.records import TOO_LONG
from jaxtrain.corpus.inputs.text import text_document

HTML = ("text/html", "application/xhtml+xml")
_PAGES = ("response", "conversion", "resource")  # the other types of record hold no document
_ENCODINGS = ("", "identity", "none", "gzip", "x-gzip", "deflate")  # what warcio unpacks by itself
_OK = "200"
_MAX_DETECT_BYTES = 64_000


def read(part: Part, reading: ReadingConfig) -> Items:
    """The pages with status 200 that are HTML or plain text; metadata: mime, url, date."""
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError as error:
        raise ValueError(f"{part.file}: WARC needs `pip install jaxtrain[web]`") from error

    end = 0
    with storage.open_binary(part.file) as file:
        try:
            records = ArchiveIterator(file)
            for record in records:
                is_page = record.rec_type in _PAGES
                reason = _why_skipped(record) if is_page else None
                content = b""
                if is_page and not reason:
                    content = record.content_stream().read(reading.max_document_bytes + 1)
                num_errors = records.err_count
                start, size = records.get_record_offset(), records.get_record_length()
                end = start + size
                # warcio takes the end of the file for the end of a record that is cut short.
                if getattr(record.raw_stream, "limit", 0) or records.err_count > num_errors:
                    detail = "a record is not as long as it says"
                    yield Malformed(part.name, start, "damaged file", size, detail)
                elif reason:
                    yield Skipped(part.name, start, reason, size)
                elif is_page:
                    yield _page(record, content, start, size, part, reading)
        except (ArchiveLoadFailed, EOFError, OSError) as error:
            message = " ".join(str(error).split())
            yield Malformed(part.name, end, "damaged file", 0, message[:200])


def _page(
    record: Any, content: bytes, start: int, size: int, part: Part, reading: ReadingConfig
) -> Item:
    fields = {"mime": _mime(record)}
    for field, header in (("url", "WARC-Target-URI"), ("date", "WARC-Date")):
        if value := record.rec_headers.get_header(header):
            fields[field] = value
    try:
        if len(content) > reading.max_document_bytes:
            raise Fault(TOO_LONG, f"longer than max_document_bytes={reading.max_document_bytes:,}")
        item = text_document(_as_utf8(content, record), part, reading, **fields)
    except Fault as fault:
        return Malformed(part.name, start, fault.reason, size, str(fault))
    if isinstance(item, Skipped):
        return Skipped(part.name, start, item.reason, size)
    place = f"{part.name}:{start}"
    return item._replace(id=place, metadata={**item.metadata, "origin": place})


def _why_skipped(record: Any) -> str | None:
    http = record.http_headers
    if record.rec_type == "response":
        if http is None:
            return "not a page of the web"
        if http.get_statuscode() != _OK:
            return "HTTP status not 200"
        encoding = (http.get_header("Content-Encoding") or "").lower().strip()
        has_brotli = importlib.util.find_spec("brotli") is not None
        if encoding not in _ENCODINGS and not (encoding == "br" and has_brotli):
            return "unknown content encoding"
    return None if _mime(record) in (*HTML, "text/plain") else "neither HTML nor text"


def _mime(record: Any) -> str:
    """What the payload is: as the crawler found, else as the server said."""
    identified = record.rec_headers.get_header("WARC-Identified-Payload-Type")
    return (identified or _content_type(record)).partition(";")[0].strip().lower()


def _content_type(record: Any) -> str:
    headers = record.http_headers if record.rec_type == "response" else record.rec_headers
    return headers.get_header("Content-Type") or ""


def _as_utf8(content: bytes, record: Any) -> bytes:
    """The page in UTF-8, from the encoding that the server, the page or its bytes tell.

    Bytes that are no characters of it become U+FFFD, as in a browser: pages are no worse for it.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    if record.rec_type == "conversion":  # WET is UTF-8
        return content
    try:
        content.decode()
        return content  # nothing but UTF-8 looks like it
    except UnicodeDecodeError:
        pass
    label = _content_type(record).lower().partition("charset=")[2].strip(" \"';")
    encoding = map_encoding_to_html5(label, fallback_utf8=False) if label else None
    if encoding is None:
        encoding = detect_encoding(content, max_len=_MAX_DETECT_BYTES, from_html_meta=True)
    text = bytes_to_str(content, encoding or "utf-8", "replace", fallback_encodings=())
    return text.encode(errors="replace")
