import pytest

from jaxtrain.planning.targets import TARGETS, get_target
from jaxtrain.train.peak import CHIPS, Peaks


def test_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="target 'v100' must be one of h100, h200, b200, a100"):
        get_target("v100")


def test_peaks_are_those_that_utilisation_is_measured_against():
    for target in TARGETS.values():
        (chip,) = (chip for chip in CHIPS if chip in target.device_kind)
        assert CHIPS[chip] == Peaks(target.bf16_tflops, target.fp8_tflops, target.fp4_tflops)


@pytest.mark.parametrize("name", TARGETS)
def test_formats_follow_the_compute_capability(name):
    """E4M3 from 8.9 on, E2M1 from 10.0; accelerated features are a Hopper thing and later."""
    target = TARGETS[name]
    assert (target.fp8_tflops is not None) == (target.compute_capability >= (8, 9))
    assert (target.fp4_tflops is not None) == (target.compute_capability >= (10, 0))
    assert ("ACCELERATED_FEATURES" in target.description) == (target.compute_capability >= (9, 0))
