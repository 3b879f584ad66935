import dataclasses
import pickle

import pytest

from jaxtrain import config as config_lib
from jaxtrain.corpus.config import STEP_MODULES, CorpusConfig
from jaxtrain.corpus.line import named_steps
from tests.corpora import make_config


def test_every_module_of_steps_has_its_section_with_defaults(root_dir):
    names = {path.stem for path in (root_dir / "jaxtrain/corpus/steps").glob("[a-z]*.py")}
    assert names == set(STEP_MODULES)
    made = CorpusConfig()
    for name, module in STEP_MODULES.items():
        assert getattr(made, name) == module.Config()


def test_every_step_module_keeps_the_contract():
    for name, module in STEP_MODULES.items():
        assert callable(module.make), name
        assert module.__doc__, name
        assert dataclasses.is_dataclass(module.Config), name
        assert hasattr(module, "fit") == hasattr(module, "check"), name


def test_knobs_name_sections_and_every_knob_is_documented():
    knobs = {knob.path: knob for knob in config_lib.knobs(CorpusConfig)}
    assert {"inputs", "steps", "executor", "reading.malformed"} <= set(knobs)
    assert "drop_near_duplicates.threshold" in knobs
    assert [path for path, knob in knobs.items() if not knob.doc] == []


def test_config_reaches_another_process_as_it_is():
    config = make_config(["a=/x/*.txt"], steps=("normalize",), heldout_frac=0.1)
    assert pickle.loads(pickle.dumps(config)) == config


def test_flags_set_tuples_and_values_of_steps():
    config = config_lib.to_config_dict(CorpusConfig)
    for path, text in (
        ("inputs", "web=/d/*.jsonl.gz,books=/b/*.txt"),
        ("steps", "normalize,my.module:function"),
        ("normalize.form", "NFKC"),
    ):
        config_lib.override(CorpusConfig, config, path, text)
    made = config_lib.resolve(CorpusConfig, config)
    assert made.inputs == ("web=/d/*.jsonl.gz", "books=/b/*.txt")
    assert made.steps == ("normalize", "my.module:function")
    assert made.normalize.form == "NFKC"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heldout_frac": 1.0}, r"config\.heldout_frac=1\.0 must lie between 0 and 1"),
        ({"heldout_frac": -0.1}, r"config\.heldout_frac=-0\.1 must"),
        ({"chunk_bytes": 0}, r"config\.chunk_bytes=0 must be at least 1"),
        ({"num_workers": 0}, r"config\.num_workers=0 must be at least 1, or None"),
        ({"executor": "dask"}, r"config\.executor='dask' must be one of local, ray"),
        ({"rejected": "few"}, r"config\.rejected='few' must be one of none, sample, all"),
        ({"licences": ("web",)}, r"config\.licences: 'web' must be name=licence"),
        ({"licences": ("b=MIT",)}, r"config\.licences names b, which is no name of config\.inputs"),
    ],
)
def test_wrong_value_is_refused_with_its_path(values, message):
    with pytest.raises(ValueError, match=message):
        make_config(["a=/x"], **values)


@pytest.mark.parametrize(
    "preset", ["code.py", "web.py", "web.py:warc", "web.py:decontaminate,warc"]
)
def test_preset_names_steps_that_there_are(root_dir, preset):
    config = config_lib.load(CorpusConfig, str(root_dir / "configs" / "corpus" / preset))
    config = config_lib.resolve(CorpusConfig, config)
    assert config.steps == tuple(step.name for step in named_steps(config))
    for part in preset.partition(":")[2].split(","):
        assert {"warc": "extract_html"}.get(part, part or "normalize") in config.steps


def test_preset_refuses_an_unknown_part(root_dir):
    with pytest.raises(ValueError, match=r"web\.py:wet: wet is none of warc, decontaminate"):
        config_lib.load(CorpusConfig, str(root_dir / "configs/corpus/web.py:wet"))
