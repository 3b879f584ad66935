"""The Python standard library: real text that is on every machine with Python.

Every source file is a document; every longer docstring is one too, since it is prose. Some 10 MB
together. The test suites are left out: they are larger than all the rest and many distributions
do not ship them, so the corpus would differ between machines more than it has to. So are files that
are tables in the clothes of a program (character encodings, help topics, build settings).
"""

import ast
import fnmatch
import hashlib
import os
import pathlib
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator

from jaxtrain.corpus.documents import PART_OF, Document
from jaxtrain.corpus.inputs.reading import Items, Part, ReadingConfig, Skipped, Unit

INPUT = "stdlib:"  # what a user writes in config.inputs
_NO_SOURCE = ("site-packages", "dist-packages", "__pycache__")
_TESTS = ("test", "tests", "idle_test")
_TABLES = ("encodings", "pydoc_data", "_sysconfigdata*")
_EXCLUDE = _NO_SOURCE + _TESTS + _TABLES
_MIN_DOCSTRING_BYTES = 200  # a docstring this long is a document of its own
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def unit(source: str | None = None) -> Unit:
    """The library as one unit of input; `source` names all its documents where given.

    Otherwise they are "stdlib-source" and "stdlib-docstring".
    """
    num_bytes = sum(path.stat().st_size for path in _source_files(_top()) if path.exists())
    return Unit(
        (Part(INPUT, INPUT, "stdlib", 0, None, source or "stdlib", source is not None),), num_bytes
    )


def sha256() -> str:
    """A hash, in hex, of the names and the content of all files that are read."""
    digest = hashlib.sha256()
    top = _top()
    for path in _source_files(top):
        content = path.read_bytes() if path.exists() else b""
        digest.update(f"{path.relative_to(top).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def read(part: Part, reading: ReadingConfig) -> Items:
    """Yields the library's sources by path, each followed by its docstrings.

    Ids are `json/decoder.py` and `json/decoder.py#L12:JSONDecoder.decode`, relative to the root of
    the library.
    """
    sources, docstrings = (
        part.source if part.is_named else f"{part.source}-{kind}"
        for kind in ("source", "docstring")
    )
    top = _top()
    for path in _source_files(top):
        name = path.relative_to(top).as_posix()
        item = _read_source(path, name, sources)
        yield item
        if isinstance(item, Document):
            yield from _docstrings(item, docstrings)


def _top() -> pathlib.Path:
    return pathlib.Path(sysconfig.get_path("stdlib"))


def _source_files(top: pathlib.Path) -> list[pathlib.Path]:
    """The .py files below `top`, ordered by path however the file system lists them."""

    def is_read(name: str) -> bool:
        return not any(fnmatch.fnmatchcase(name, glob) for glob in _EXCLUDE)

    found = []
    for folder, subfolders, names in os.walk(top, onerror=_raise):
        subfolders[:] = [name for name in subfolders if is_read(name)]
        found += [
            pathlib.Path(folder, name) for name in names if name.endswith(".py") and is_read(name)
        ]
    if not found:
        raise ValueError(
            f"{top} holds no Python sources; install Python with its library's .py files"
        )
    return sorted(found, key=lambda path: path.relative_to(top).as_posix())


def _raise(error: OSError) -> None:
    raise error


def _read_source(path: pathlib.Path, name: str, source: str) -> Document | Skipped:
    """The file as a document, line endings as they are; or why it is none."""
    try:
        raw = path.read_bytes()
    except OSError:
        return Skipped(name, 0, "unreadable", 0)
    try:
        encoding, _ = tokenize.detect_encoding(iter(raw.splitlines(keepends=True)).__next__)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):  # detect_encoding raises SyntaxError
        return Skipped(name, 0, "undecodable", len(raw))
    if not text.strip():  # an __init__.py that only makes a folder a package
        return Skipped(name, 0, "empty text", len(raw))
    return Document(name, text, source, {"origin": f"{name}:0"})


def _docstrings(whole: Document, source: str) -> Items:
    """Docstrings long enough; shorter ones are in the source and count as nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the library's matter
            module = ast.parse(whole.text)
    except (SyntaxError, ValueError):  # templates, and files for another version of the language
        return
    for line, path, text in _named_docstrings(module):
        num_bytes = len(text.encode(errors="surrogatepass"))
        if num_bytes < _MIN_DOCSTRING_BYTES:
            continue
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # written as an escape
            yield Skipped(whole.id, line, "undecodable", num_bytes)
        else:
            # The line keeps the ids of two definitions of one name apart.
            metadata = {"origin": f"{whole.id}:L{line}", PART_OF: whole.id}
            yield Document(f"{whole.id}#L{line}:{path or 'module'}", text, source, metadata)


def _named_docstrings(node: ast.AST, path: str = "") -> Iterator[tuple[int, str, str]]:
    """(line, "Class.method", docstring) of a module and of all that is defined in it, in order."""
    if isinstance(node, (ast.Module, *_DEFINITIONS)):
        text = ast.get_docstring(node)
        if text:
            yield getattr(node, "lineno", 1), path, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield from _named_docstrings(child, f"{path}.{child.name}" if path else child.name)
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _named_docstrings(child, path)
