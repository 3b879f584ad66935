"""The shape of the tree: where files lie, how long they are, what they may not name."""

import ast
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]

EVERYWHERE = ("jaxtrain", "configs", "tests", "scripts")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

# Modules without a test file of their own, and why.
NO_MIRROR = {
    "jaxtrain/types.py": "declarations only; every test of a batch or a loss uses them",
    "jaxtrain/options.py": "one function; tests/test_config.py reads what it declares",
}
# Modules that use private parts of JAX, and why.
USE_PRIVATE_JAX = {
    "jaxtrain/kernels/fp8_dot.py": "Pallas has no public way to a product in FP8 for Triton",
}
# Folders of tests that mirror no folder of the package.
NO_PACKAGE = {"contracts", "golden", "integration"}
# Names that say nothing about what a file is for.
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "tools", "functions"}


def python_files(*folders: str) -> list[pathlib.Path]:
    return sorted(path for folder in folders for path in ROOT.joinpath(folder).rglob("*.py"))


def relative(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def assert_nothing_found(
    check: Callable[[str], Iterable[str]], *folders: str, but: Collection[str] = ()
) -> None:
    found = [
        f"{relative(path)}: {finding}"
        for path in python_files(*folders)
        if relative(path) not in but
        for finding in check(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_every_module_has_a_test_file_in_the_same_place():
    missing = []
    for path in python_files("jaxtrain"):
        inside = path.relative_to(ROOT / "jaxtrain")
        mirror = ROOT / "tests" / inside.parent / f"test_{inside.name}"
        if path.name != "__init__.py" and relative(path) not in NO_MIRROR and not mirror.exists():
            missing.append(f"{relative(path)} has no {relative(mirror)}")
    assert not missing, "\n".join(missing)


def test_exceptions_from_the_mirror_are_of_files_that_exist():
    assert [name for name in NO_MIRROR if not (ROOT / name).exists()] == []


def test_every_folder_of_tests_mirrors_a_folder_of_the_package():
    folders = {path.parent.relative_to(ROOT / "tests") for path in python_files("tests")}
    strays = [
        folder.as_posix()
        for folder in folders
        if not (ROOT / "jaxtrain" / folder).is_dir() and folder.parts[0] not in NO_PACKAGE
    ]
    assert strays == []


def test_files_and_functions_are_short_enough_to_be_read():
    assert_nothing_found(_too_long, *EVERYWHERE)


def _too_long(source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines >= MAX_FILE_LINES:
        yield f"{lines} lines; split it by concept"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines >= MAX_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


def test_no_file_or_folder_has_an_empty_name():
    paths = python_files(*EVERYWHERE)
    assert [relative(p) for p in paths if EMPTY_NAMES & {p.stem, p.parent.name}] == []


def test_only_public_parts_of_jax_are_used():
    assert_nothing_found(_private_jax, *EVERYWHERE, but=USE_PRIVATE_JAX)


def test_exceptions_from_public_parts_are_of_files_that_need_them():
    for name in USE_PRIVATE_JAX:
        assert list(_private_jax((ROOT / name).read_text(encoding="utf-8"))) != []


def _private_jax(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        yield from (name for name in names if re.match(r"jax\.(_src|interpreters)\b", name))


def test_no_config_value_has_a_second_default():
    """`.get` on a config hides a misspelt key, even where the config is locked."""
    assert_nothing_found(_config_gets, "jaxtrain", "configs")


def _config_gets(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and re.search(r"(^|[._])(c|cfg|config)$", ast.unparse(node.func.value))
        ):
            yield ast.unparse(node)


def test_no_kernel_is_interpreted_or_of_a_tpu_outside_of_tests():
    """A kernel runs on the GPU that it was made for, or is refused; only tests interpret one."""
    assert_nothing_found(_interpreted, "jaxtrain", "configs")


def _interpreted(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "interpret":
            if not ast.unparse(node.value).endswith("spec.interpret"):
                yield f"interpret={ast.unparse(node.value)}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (name for name in names if re.search(r"(^|\.)(pl)?tpu($|\.)", name))


def test_checks_find_what_they_look_for():
    body = "\n".join(f"    x{i} = {i}" for i in range(MAX_FUNCTION_LINES))
    assert list(_too_long(f"def f():\n{body}\n")) == [f"f has {MAX_FUNCTION_LINES + 1} lines"]
    assert list(_too_long("x = 1\n" * MAX_FILE_LINES)) != []
    assert list(_too_long("x = 1\n" * (MAX_FILE_LINES - 1))) == []
    assert list(_private_jax("from jax._src import core")) == ["jax._src.core"]
    assert list(_private_jax("import jax.interpreters.mlir")) == ["jax.interpreters.mlir"]
    assert "jax._src.core" in list(_private_jax("import jax\njax._src.core.Jaxpr"))
    assert list(_private_jax("import jax\njax.numpy")) == []
    for call in ("config.get('a', 1)", "self.config.get('a')", "model_config.get('a', default=1)"):
        assert list(_config_gets(call)) == [call]
    assert list(_config_gets("sizes.get('a', 1)")) == []
    assert list(_interpreted("call(f, interpret=True)")) == ["interpret=True"]
    assert list(_interpreted("from jax.experimental.pallas import tpu as pltpu")) == ["tpu"]
    assert list(_interpreted("from a import output\ncall(f, interpret=spec.interpret)")) == []
