import jax
import pytest

from jaxtrain import config_program, startup_report
from jaxtrain.data.loader import Loader
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh


@pytest.fixture(scope="module")
def described(tiny_config):
    """(config, program, lines)."""
    config = tiny_config()
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    source = Loader(config.data, config.loop.seed)
    return config, program, startup_report.describe(config, program, source)


def test_description_names_model_optimizer_data_and_versions(described):
    config, program, lines = described
    num_params = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_state.params))
    assert lines["model"] == f"{num_params:,} parameters, {config.precision.recipe}"
    assert "adamw" in lines["optimizer"]
    assert "best_fit" in lines["data"]
    assert f", jax {jax.__version__}, " in lines["versions"]


def test_notes_come_last_one_a_line(described, capsys):
    _, program, _ = described
    startup_report.say(program.abstract_state.params, {"start": "new"}, ["first", "second"])
    assert capsys.readouterr().out.endswith("start: new\nnote: first\nnote: second\n")
