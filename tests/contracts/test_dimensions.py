"""The letters at the end of an array's name are its dimensions: suffix = annotation ⊂ legend."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

from jaxtrain.types import LEGEND

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = sorted(
    path for folder in ("models", "losses") for path in (ROOT / "jaxtrain" / folder).glob("*.py")
)

_SUFFIX = re.compile(r"[a-z][a-z0-9_]*_([A-Z]+)$")


def test_suffix_is_the_annotation_and_within_the_legend():
    violations = [
        f"{path.relative_to(ROOT)}: {violation}"
        for path in FILES
        for violation in _violations(path.read_text(encoding="utf-8"))
    ]
    assert not violations, "\n".join(violations)


def _violations(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield from _outside_legend(node.id, _suffix(node.id), node.lineno)
    for function in _public_functions(tree):
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        for argument in arguments:
            yield from _disagreements(argument.arg, argument.annotation, argument.lineno)
        if _suffix(function.name):
            yield from _disagreements(function.name, function.returns, function.lineno)
        elif function.returns is not None:
            for dims in _dimensions(function.returns):
                letters = "".join(filter(_is_letter, dims))
                yield from _outside_legend(f"{function.name}()", letters, function.lineno)


def _public_functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Functions and methods that are used from outside, `__call__` and the like included."""
    for child in ast.iter_child_nodes(node):
        is_private = getattr(child, "name", "").startswith("_")
        if isinstance(child, ast.ClassDef) and not is_private:
            yield from _public_functions(child)
        elif isinstance(child, ast.FunctionDef) and (not is_private or child.name[:2] == "__"):
            yield child


def _disagreements(name: str, annotation: ast.expr | None, line: int) -> Iterator[str]:
    suffix = _suffix(name)
    annotated = list(_dimensions(annotation)) if annotation is not None else []
    if suffix and not annotated:
        yield f"line {line}: {name} needs an annotation with its dimensions"
    for dims in annotated:
        yield from _outside_legend(name, "".join(filter(_is_letter, dims)), line)
        only_letters = bool(dims) and all(map(_is_letter, dims))
        if suffix != "".join(dims) and (suffix or only_letters):
            yield f"line {line}: {name} is annotated as {' '.join(dims)!r}"


def _dimensions(annotation: ast.expr) -> Iterator[list[str]]:
    """The dimension strings within an annotation such as `Float[Array, "B T D"] | None`."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            last = node.slice.elts[-1]
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                yield last.value.split()


def _outside_legend(name: str, letters: str, line: int) -> Iterator[str]:
    for letter in letters:
        if letter not in LEGEND:
            yield f"line {line}: {name} has {letter!r}, which types.LEGEND does not explain"


def _suffix(name: str) -> str:
    match = _SUFFIX.match(name)
    return match.group(1) if match else ""


def _is_letter(dimension: str) -> bool:
    return len(dimension) == 1 and dimension.isupper()


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        ("def f(x_BTD: Float[Array, 'B T D']): ...", None),
        ("def f(x: Float[Array, '*rest size']): ...", None),
        ("def f(x_BT: Int[Array, 'B T'] | None = None): ...", None),
        ("def f(x_BTD: Float[Array, 'B D T']): ...", "x_BTD is annotated as 'B D T'"),
        ("def f(x_BTD: Array): ...", "x_BTD needs an annotation"),
        ("def f(x_BTD): ...", "x_BTD needs an annotation"),
        ("def f(x: Float[Array, 'B T']): ...", "x is annotated as 'B T'"),
        ("def f(*, x_BX: Float[Array, 'B X']): ...", "x_BX has 'X'"),
        ("def head_DV() -> Float[Array, 'V D']: ...", "head_DV is annotated as 'V D'"),
        ("def f() -> Float[Array, 'B Z']: ...", "f() has 'Z'"),
        ("class A:\n  def __call__(self, x_B): ...", "x_B needs an annotation"),
        ("class _A:\n  def f(self, x_B): ...", None),
        ("def _f(x_B): ...", None),
        ("y_BX = x", "y_BX has 'X'"),
        ("_MAX_SIZE = 1", None),
    ],
)
def test_check_finds_what_it_looks_for(source, violation):
    found = list(_violations(source))
    assert len(found) == (violation is not None)
    assert violation is None or violation in found[0]
