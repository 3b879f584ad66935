import re

import jax
import jax.numpy as jnp
import pytest

from jaxtrain.optim.groups import Count, count_params, describe, group_of, group_tree, layout


@pytest.mark.parametrize(
    ("axes", "group"),
    [
        ("VD", "embedding"),
        ("DV", "head"),
        ("LDNH", "matrix"),  # query projection
        ("LDKH", "matrix"),
        ("LNHD", "matrix"),  # output projection
        ("LDF", "matrix"),
        ("LFD", "matrix"),
        ("DNH", "matrix"),  # not stacked
        ("LEDF", "matrix"),  # experts
        ("LDE", "matrix"),  # router
        ("LDR", "matrix"),  # low-rank latent
        ("LRNH", "matrix"),
        ("LDH", "matrix"),  # one shared key head
        ("D", "vector"),
        ("LD", "vector"),
        ("LH", "vector"),  # query and key norms
        ("LNH", "vector"),  # bias of all query heads
        ("LKH", "vector"),
        ("LF", "vector"),
        ("LE", "vector"),  # router bias
        ("LEF", "vector"),  # bias of each expert
        ("V", "vector"),
        ("L", "vector"),
        ("", "vector"),
    ],
)
def test_group_follows_from_the_letters(axes, group):
    assert group_of(axes) == group


def test_layout_keeps_heads_and_head_size_on_one_side():
    assert layout("LDNH") == ("L", ("D", "NH"))
    assert layout("LNHD") == ("L", ("NH", "D"))
    assert layout("LEFD") == ("LE", ("F", "D"))


def test_three_sides_are_refused_with_their_names():
    with pytest.raises(ValueError, match=re.escape("axes='LDFR' has the sides D × F × R")):
        group_of("LDFR")


AXES = {"embed": "VD", "blocks": {"w": "LDNH", "b": "LNH", "scale": "LD"}, "head": "DV"}
SIZES = {"V": 10, "D": 4, "L": 2, "N": 3, "H": 5}


def _abstract():
    def leaf(letters):
        return jax.ShapeDtypeStruct(tuple(SIZES[letter] for letter in letters), jnp.float32)

    return jax.tree.map(leaf, AXES)


def test_group_tree_has_the_structure_of_the_parameters():
    assert group_tree(AXES) == {
        "embed": "embedding",
        "blocks": {"w": "matrix", "b": "vector", "scale": "vector"},
        "head": "head",
    }


def test_counts_cover_every_parameter_of_an_abstract_model():
    assert count_params(_abstract(), AXES) == {
        "matrix": Count(1, 2 * 4 * 3 * 5),
        "embedding": Count(1, 40),
        "head": Count(1, 40),
        "vector": Count(2, 2 * 3 * 5 + 2 * 4),
    }


def test_description_counts_what_decays_and_what_does_not():
    assert describe(_abstract(), AXES, ("matrix", "head")) == (
        "weight decay on 160 parameters (matrix 120 in 1 arrays; head 40 in 1 arrays)\n"
        "no weight decay on 78 parameters (embedding 40 in 1 arrays; vector 38 in 2 arrays)"
    )


def test_description_says_none_when_nothing_decays():
    assert describe(_abstract(), AXES, ()).startswith("weight decay on 0 parameters (none)\n")
