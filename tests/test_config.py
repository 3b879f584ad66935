import dataclasses
import json
from collections.abc import Mapping

import pytest

from jaxtrain import config
from jaxtrain.options import option


@dataclasses.dataclass(frozen=True)
class Source:
    path: str = option(doc="Where it lies.")
    weight: float = option(1.0, "Share.")


@dataclasses.dataclass(frozen=True)
class Data:
    sources: Mapping[str, Source] = option({}, "Named sources.")
    sizes: tuple[tuple[int, int], ...] = option((), "(step, size) pairs.")
    limit: float | None = option(1.0, "Limit; None is off.", resumable=True)
    window: int | None = option(None, "Window.")
    kind: str = option("a", "Kind.", choices=("a", "b"))
    shape: str | None = option(None, "Shape; None: any.", choices=("square", "round"))
    fast: bool = option(False, "Fast.")
    names: tuple[str, ...] = option((), "Names.")

    def __post_init__(self):
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1.")


@dataclasses.dataclass(frozen=True)
class Init:
    steps: int = option(doc="Steps.")
    from_: str | None = option(None, "Start.")


@dataclasses.dataclass(frozen=True)
class Tree:
    data: Data
    init: Init


@pytest.fixture
def tree():
    c = config.to_config_dict(Tree)
    c.data.sources = {"web": {"path": "x"}}
    c.init.steps = 3
    return config._complete(Tree, c)


def test_to_config_dict_is_locked_with_every_key_present():
    c = config.to_config_dict(Tree)
    assert c.to_dict() == {
        "data": {
            "sources": {}, "sizes": (), "limit": 1.0, "window": None, "kind": "a", "shape": None,
            "fast": False, "names": (),
        },
        "init": {"steps": None, "from": None},
    }  # fmt: skip
    with pytest.raises(AttributeError, match="windw"):
        c.data.windw = 3


def test_resolve_gives_the_frozen_tree(tree):
    assert config.resolve(Tree, tree) == Tree(Data(sources={"web": Source("x")}), Init(3, None))


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("data.window", "5", 5),
        ("data.limit", "2", 2.0),
        ("data.limit", "None", None),
        ("data.sizes", "((3, 4),)", ((3, 4),)),
        ("data.sources.web.weight", "0.25", 0.25),
        ("data.kind", "b", "b"),
        ("data.fast", "True", True),
        ("data.shape", "None", None),
        ("data.shape", "round", "round"),
        ("data.names", "web=/d/*.jsonl.gz,books=/b/*.txt", ("web=/d/*.jsonl.gz", "books=/b/*.txt")),
        ("data.names", "a", ("a",)),
        ("data.names", "a,", ("a",)),
        ("data.names", "", ()),
        ("data.names", "('a,b', 'c')", ("a,b", "c")),
        ("init.from", "runs/a@30", "runs/a@30"),
    ],
)
def test_override_is_read_by_the_declared_type(tree, path, text, value):
    config.override(Tree, tree, path, text)
    node = config.to_plain(config.resolve(Tree, tree))
    for key in path.split("."):
        node = node[key]
    assert node == config.to_plain(value)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("data.windw", "5", "config.data.windw is not a known key; did you mean window"),
        ("dta.window", "5", "config.dta is not a known key; did you mean data?"),
        ("data.sources.web.wait", "2", "config.data.sources.web.wait is not a known key; did you"),
        (
            "data.sources.wbe.weight",
            "2",
            "config.data.sources.wbe is not a known key; did you mean w",
        ),
        ("data", "5", "config.data holds fast, kind, limit, names, shape"),
        ("data.window.x", "5", "config.data.window holds no keys"),
        ("data.window", "1.5", "config.data.window=1.5 must be int | None"),
        ("data.window", "many", "config.data.window=many must be int | None"),
        ("data.window", "True", "config.data.window=True must be int | None"),
        ("data.window", "0", "config.data.window=0 must be at least 1."),
        ("data.sizes", "(3, 4)", "config.data.sizes"),
        ("data.kind", "c", "config.data.kind='c' must be one of a, b"),
        ("data.shape", "c", "config.data.shape='c' must be one of square, round"),
        ("data.kind", "None", "config.data.kind='None' would be a string of four letters"),
        ("data.fast", "1", "config.data.fast=1 must be true or false"),
        ("data.names", "a,,b", "config.data.names=a,,b has nothing between two commas"),
        ("data.names", "a,None", "config.data.names[1]='None' is a string of four letters"),
        ("data.names", "('a', 1)", "config.data.names=('a', 1) must be tuple[str, ...]"),
        ("init.steps", "None", "config.init.steps=None must be an int"),
    ],
)
def test_override_error_names_the_dotted_path_and_what_is_expected(tree, path, text, message):
    def read():
        config.override(Tree, tree, path, text)
        config.resolve(Tree, tree)

    with pytest.raises(ValueError, match="config") as error:
        read()
    assert message in str(error.value)


def test_resolve_names_a_missing_value():
    c = config.to_config_dict(Tree)
    with pytest.raises(ValueError, match=r"config\.init\.steps is missing"):
        config.resolve(Tree, c)


def test_resolve_refuses_the_string_none(tree):
    tree.data.sources.web.path = "None"
    with pytest.raises(ValueError, match=r"config\.data\.sources\.web\.path='None' is a string"):
        config.resolve(Tree, tree)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("c.data.windw = 3", "windw"),
        ("c.data.window = 'many'", "window"),
        (
            "c.data.sources = {'web': {'pth': 'x'}}",
            r"config\.data\.sources\.web\.pth is not a known",
        ),
    ],
)
def test_load_reports_a_fault_in_the_file_as_one_line(tmp_path, monkeypatch, line, message):
    file = tmp_path / "run.py"
    file.write_text(f"def get_config():\n    c = to_config_dict(Tree)\n    {line}\n    return c\n")
    monkeypatch.setattr("builtins.to_config_dict", config.to_config_dict, raising=False)
    monkeypatch.setattr("builtins.Tree", Tree, raising=False)
    with pytest.raises(ValueError, match=message) as error:
        config.load(Tree, str(file))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:\n", "SyntaxError: "),
        ("x = 3\n", r"it must define get_config\(\)"),
        ("def get_config():\n    return {}\n", r"get_config\(\) must return the ConfigDict"),
        ("def get_config():\n    return missing\n", "NameError: name 'missing' is not defined"),
    ],
)
def test_load_reports_a_file_that_is_no_config_as_one_line(tmp_path, text, message):
    file = tmp_path / "run.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"--config={file}: {message}") as error:
        config.load(Tree, str(file))
    assert "\n" not in str(error.value)


def test_load_passes_the_argument_after_the_colon(tmp_path, monkeypatch):
    file = tmp_path / "run.py"
    file.write_text(
        "def get_config(kind):\n"
        "    c = to_config_dict(Tree)\n"
        "    c.data.kind = kind\n"
        "    return c\n"
    )
    monkeypatch.setattr("builtins.to_config_dict", config.to_config_dict, raising=False)
    monkeypatch.setattr("builtins.Tree", Tree, raising=False)
    assert config.load(Tree, f"{file}:b").data.kind == "b"


@pytest.fixture
def file_without_sources(tmp_path, monkeypatch):
    file = tmp_path / "run.py"
    file.write_text("def get_config():\n    return to_config_dict(Tree)\n")
    monkeypatch.setattr("builtins.to_config_dict", config.to_config_dict, raising=False)
    monkeypatch.setattr("builtins.Tree", Tree, raising=False)
    return str(file)


def test_flags_name_sources_where_the_file_names_none(file_without_sources):
    flags = [("data.sources.a.path", "x"), ("data.sources.b.path", "y"), ("init.steps", "3")]
    flags.append(("data.sources.a.weight", "0.5"))
    found = config.resolve(Tree, config.load(Tree, file_without_sources, flags))
    assert found.data.sources == {"a": Source("x", 0.5), "b": Source("y")}


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (("data.sources.a.weight", "2"), r"config\.data\.sources\.a\.path is missing"),
        (("data.sources.a.wait", "2"), r"config\.data\.sources\.a\.wait is not a known key"),
        (("data.sources.a", "x"), r"config\.data\.sources\.a is not a known key"),
    ],
)
def test_a_source_that_a_flag_names_has_to_be_whole(file_without_sources, flag, message):
    flags = [flag, ("init.steps", "3")]
    with pytest.raises(ValueError, match=message):
        config.resolve(Tree, config.load(Tree, file_without_sources, flags))


def test_load_names_a_file_that_is_not_there():
    with pytest.raises(ValueError, match=r"--config=nowhere\.py: no such file"):
        config.load(Tree, "nowhere.py")


def test_to_plain_is_json_and_resolves_to_the_same_tree(tree):
    resolved = config.resolve(Tree, tree)
    plain = json.loads(json.dumps(config.to_plain(resolved)))
    assert config.resolve(Tree, plain) == resolved


def test_knobs_list_every_path_with_type_default_and_choices():
    rows = {knob.path: knob for knob in config.knobs(Tree)}
    assert list(rows) == [
        "data.sources.*.path", "data.sources.*.weight", "data.sizes", "data.limit", "data.window",
        "data.kind", "data.shape", "data.fast", "data.names", "init.steps", "init.from",
    ]  # fmt: skip
    assert rows["data.kind"].doc == "Kind. One of: a, b."
    assert rows["init.steps"].default == "(required)"
    assert rows["data.limit"].resumable
    assert not rows["data.kind"].resumable


def test_differences_give_path_and_both_values():
    assert list(config.differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})) == [
        "config.a.b: 1 -> 3",
        "config.a.c: 2 -> '(absent)'",
    ]


def test_differences_show_sections_and_long_values_in_short():
    assert list(config.differences({"a": {"b": 1, "c": 2}}, {"names": ["x" * 300]})) == [
        "config.a: (2 values) -> '(absent)'",
        f"config.names: '(absent)' -> ['{'x' * 197}…",
    ]


def test_assign_sets_every_key_to_what_a_dataclass_holds():
    section, value = config.to_config_dict(Init), Init(7, "somewhere")
    config.assign(section, value)
    assert section["from"] == "somewhere"
    assert config.resolve(Init, section) == value


def test_assign_refuses_a_key_that_the_section_lacks():
    with pytest.raises(KeyError, match="path"):
        config.assign(config.to_config_dict(Init), Source("x"))
