"""A tree of source code: every file of a known language is a document with that `language`.

Skipped and counted: binary files, generated ones (they say so in their first lines) and files of no
known language. What `reading.exclude` names, vendored code above all, is not looked at.
"""

import io
import re
import tokenize

from jaxtrain.corpus.inputs.reading import Fault, Items, Malformed, Part, ReadingConfig, Skipped
from jaxtrain.corpus.inputs.text import text_document, whole_content

_HEAD_BYTES = 8000  # where a NUL marks a binary file (git looks as far)
_HEADER_LINES = 8
_GENERATED = re.compile(
    rb"@generated|do not (edit|modify)|auto-?generated|generated (by|from|automatically)"
    rb"|machine generated",
    re.IGNORECASE,
)
_LANGUAGES = {
    "Ada": ".adb .ads",
    "Assembly": ".asm .s .S",
    "C": ".c .h",
    "C#": ".cs",
    "C++": ".cc .cpp .cxx .hpp .hh .hxx",
    "CMake": ".cmake CMakeLists.txt",
    "CSS": ".css .scss .sass .less",
    "CUDA": ".cu .cuh",
    "Clojure": ".clj .cljs",
    "Common Lisp": ".lisp .lsp",
    "Dart": ".dart",
    "Dockerfile": ".dockerfile Dockerfile",
    "Elixir": ".ex .exs",
    "Emacs Lisp": ".el",
    "Erlang": ".erl .hrl",
    "F#": ".fs .fsx",
    "Fortran": ".f .f90 .f95 .f03",
    "GLSL": ".glsl .vert .frag",
    "Go": ".go",
    "GraphQL": ".graphql",
    "Groovy": ".groovy .gradle",
    "HTML": ".html .htm",
    "Haskell": ".hs",
    "Java": ".java",
    "JavaScript": ".js .jsx .mjs .cjs",
    "Julia": ".jl",
    "Kotlin": ".kt .kts",
    "Lean": ".lean",
    "Lua": ".lua",
    "Makefile": ".mk Makefile",
    "Markdown": ".md .markdown",
    "OCaml": ".ml .mli",
    "Objective-C": ".m .mm",
    "PHP": ".php",
    "Perl": ".pl .pm",
    "PowerShell": ".ps1 .psm1",
    "Protocol Buffer": ".proto",
    "Python": ".py .pyi .pyx",
    "R": ".r .R",
    "Ruby": ".rb",
    "Rust": ".rs",
    "SQL": ".sql",
    "Scala": ".scala .sc",
    "Scheme": ".scm .ss .rkt",
    "Shell": ".sh .bash .zsh",
    "Solidity": ".sol",
    "Svelte": ".svelte",
    "Swift": ".swift",
    "TOML": ".toml",
    "Tcl": ".tcl",
    "TeX": ".tex .sty .cls .bib",
    "Text": ".txt .rst .adoc",
    "TypeScript": ".ts .tsx .mts",
    "Verilog": ".v .sv .svh",
    "VHDL": ".vhd .vhdl",
    "Vim Script": ".vim",
    "Vue": ".vue",
    "XML": ".xml .xsd .xsl",
    "YAML": ".yaml .yml",
    "Zig": ".zig",
}
_BY_ENDING = {end: name for name, endings in _LANGUAGES.items() for end in endings.split()}


def read(part: Part, reading: ReadingConfig) -> Items:
    """The file as a document with the metadata field `language`, or why it is none."""
    language = language_of(part.name)
    if language is None:
        yield Skipped(part.name, 0, "no known language", 0)
        return
    size = 0
    try:
        content = whole_content(part.file, reading.max_document_bytes)
        size = len(content)
        if b"\0" in content[:_HEAD_BYTES]:
            yield Skipped(part.name, 0, "binary file", size)
        elif _GENERATED.search(b"\n".join(content.split(b"\n", _HEADER_LINES)[:_HEADER_LINES])):
            yield Skipped(part.name, 0, "generated file", size)
        else:
            if language == "Python":
                content = _python_as_utf8(content)
            yield text_document(content, part, reading, language=language)
    except Fault as fault:
        yield Malformed(part.name, 0, fault.reason, size, str(fault))


def language_of(name: str) -> str | None:
    """The language of a source file by its ending or, as with Makefile, its name."""
    last = name.rpartition("/")[2]
    ending = last[last.rfind(".") :] if "." in last else ""
    return _BY_ENDING.get(last) or _BY_ENDING.get(ending) or _BY_ENDING.get(ending.lower())


def _python_as_utf8(content: bytes) -> bytes:
    """Python sources may say that they are in another encoding; line endings stay as they are."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content if encoding.startswith("utf-8") else content.decode(encoding).encode()
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return content  # whatever it is, reading it as UTF-8 says
