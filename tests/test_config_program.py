import jax
import pytest

from jaxtrain import config_program
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models.flops import train_flops_per_token
from jaxtrain.parallel.mesh import MeshConfig, make_mesh

EXPERTS = {"model.num_experts": 4, "model.expert_dispatch": "dropless"}


def test_make_program_refuses_an_attention_that_cannot_run(tiny_config):
    config = tiny_config({"model.attention": "cudnn"})
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(ValueError, match=r"config\.model\.attention='cudnn' cannot be used"):
        config_program.make_program(config, cross_entropy(config.loss), mesh)


def test_make_program_refuses_a_way_to_the_experts_that_cannot_run(tiny_config):
    config = tiny_config(EXPERTS)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(
        ValueError, match=r"config\.model\.expert_dispatch='dropless' has no kernel"
    ):
        config_program.make_program(config, cross_entropy(config.loss), mesh, platform="tpu")


def test_the_way_to_the_experts_names_the_kernel_that_will_run(tiny_config):
    config = tiny_config(EXPERTS)
    assert config_program.choose_dispatch(config, "cpu")[1].endswith("one matmul after the other")
    assert "grouped matmul kernel" in config_program.choose_dispatch(config, "gpu")[1]


def test_flops_are_those_of_the_model_where_nothing_is_frozen(tiny_config):
    config = tiny_config()
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    found = config_program.flops_per_token(config, program)
    assert found == train_flops_per_token(config.model, config.data.seq_len)
