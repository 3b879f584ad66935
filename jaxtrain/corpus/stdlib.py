"""Documents from the Python standard library: real text that is on every machine with Python.

Every source file is a document; every longer docstring is one too, since it is prose. Some 10 MB
together. The test suites are left out: they are larger than all the rest and many distributions
do not ship them, so the corpus would differ between machines more than it has to. So are files that
are tables in the clothes of a program (character encodings, help topics, build settings).
"""

import ast
import dataclasses
import fnmatch
import os
import pathlib
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Ledger
from jaxtrain.options import option

_NO_SOURCE = ("site-packages", "dist-packages", "__pycache__")
_TESTS = ("test", "tests", "idle_test")
_TABLES = ("encodings", "pydoc_data", "_sysconfigdata*")
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclasses.dataclass(frozen=True)
class StdlibConfig:
    """What of the standard library becomes a document."""

    exclude: tuple[str, ...] = option(
        _NO_SOURCE + _TESTS + _TABLES, "names of files and folders that are not read (globs)"
    )
    min_docstring_bytes: int = option(200, "a docstring this long (bytes) is a document of its own")


def read_stdlib(
    config: StdlibConfig, ledger: Ledger, root: str | os.PathLike[str] | None = None
) -> Iterator[Document]:
    """Yields the library's sources by path, each followed by its docstrings.

    Ids are `json/decoder.py` and `json/decoder.py#JSONDecoder.decode`, relative to the library's
    root, which is the running interpreter's unless given.
    """
    top = pathlib.Path(sysconfig.get_path("stdlib") if root is None else root)
    for path in _source_files(top, config.exclude):
        name = path.relative_to(top).as_posix()
        document = _read_source(path, name, ledger)
        if document is not None:
            yield document
            yield from _docstrings(document, config.min_docstring_bytes, ledger)


def _source_files(top: pathlib.Path, exclude: tuple[str, ...]) -> list[pathlib.Path]:
    """The .py files below `top`, ordered by path however the file system lists them."""

    def is_read(name: str) -> bool:
        return not any(fnmatch.fnmatchcase(name, glob) for glob in exclude)

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


def _read_source(path: pathlib.Path, name: str, ledger: Ledger) -> Document | None:
    """The file as a document, line endings as they are; None, counted, where it is no text."""
    try:
        raw = path.read_bytes()
    except OSError:
        ledger.take(0)
        ledger.drop("unreadable", 0)
        return None
    try:
        encoding, _ = tokenize.detect_encoding(iter(raw.splitlines(keepends=True)).__next__)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):  # detect_encoding raises SyntaxError
        ledger.take(len(raw))
        ledger.drop("undecodable", len(raw))
        return None
    document = Document(name, text, "stdlib-source", {})
    ledger.take(document.num_bytes)
    if not text.strip():  # an __init__.py that only makes a folder a package
        ledger.drop("empty", document.num_bytes)
        return None
    return document


def _docstrings(source: Document, min_bytes: int, ledger: Ledger) -> Iterator[Document]:
    """Docstrings of at least `min_bytes`; shorter ones are in the source and count as nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the library's matter
            module = ast.parse(source.text)
    except (SyntaxError, ValueError):  # templates, and files for another version of the language
        return
    for place, text in _named_docstrings(module):
        num_bytes = len(text.encode(errors="surrogatepass"))
        if num_bytes >= min_bytes:
            ledger.take(num_bytes)
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # written as an escape
                ledger.drop("undecodable", num_bytes)
            else:
                yield Document(f"{source.id}#{place}", text, "stdlib-docstring", {})


def _named_docstrings(node: ast.AST, path: str = "") -> Iterator[tuple[str, str]]:
    """("L12:Class.method", docstring) of a module and of all that is defined in it, in order.

    The line keeps the ids of two definitions of one name apart.
    """
    if isinstance(node, (ast.Module, *_DEFINITIONS)):
        text = ast.get_docstring(node)
        if text:
            yield f"L{getattr(node, 'lineno', 1)}:{path or 'module'}", text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield from _named_docstrings(child, f"{path}.{child.name}" if path else child.name)
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _named_docstrings(child, path)
