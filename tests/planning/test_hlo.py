"""The reader on text of XLA's own form; on a program that it compiles: test_aot.py."""

import pytest

from jaxtrain.planning import hlo
from jaxtrain.planning.hlo import Shape

TEXT = """HloModule jit_f, is_scheduled=true

%fused (p.0: bf16[8,32], p.1: bf16[32,4]) -> bf16[8,4] {
  %p.0 = bf16[8,32]{1,0} parameter(0)
  %p.1 = bf16[32,4]{1,0} parameter(1)
  ROOT %dot.1 = bf16[8,4]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, metadata={op_name="jit(f)/a"}
}

%inner (arg: (s32[], f8e4m3fn[16,64])) -> (s32[], f8e4m3fn[16,64]) {
  %arg = (s32[], f8e4m3fn[16,64]{1,0}) parameter(0)
  %x = f8e4m3fn[16,64]{1,0} get-tuple-element(%arg), index=1
  %g = f8e5m2[32,64]{1,0} constant({...})
  %s = f32[] constant(1)
  %gemm = (bf16[16,32]{1,0}, s8[33554432]{0}) custom-call(%x, %g, %s, %s), \
custom_call_target="__cublas$lt$matmul$f8", metadata={op_name="jit(f)/b"}, \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{\
"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"],\
"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
  ROOT %t = (s32[], f8e4m3fn[16,64]{1,0}) tuple(%arg, %x)
}

%body (b: (s32[], f8e4m3fn[16,64])) -> (s32[], f8e4m3fn[16,64]) {
  %b = (s32[], f8e4m3fn[16,64]{1,0}) parameter(0)
  ROOT %while.2 = (s32[], /*index=1*/f8e4m3fn[16,64]{1,0}) while(%b), condition=%cond, \
body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}

%cond (c: (s32[], f8e4m3fn[16,64])) -> pred[] {
  ROOT %true = pred[] constant(true)
}

ENTRY %main (q.0: bf16[8,32], q.1: bf16[32,4]) -> bf16[8,4] {
  %q.0 = bf16[8,32]{1,0} parameter(0)
  %q.1 = bf16[32,4]{1,0} parameter(1)
  %init = (s32[], f8e4m3fn[16,64]{1,0}) custom-call(), custom_call_target="start"
  %while.1 = (s32[], f8e4m3fn[16,64]{1,0}) while(%init), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %one = (bf16[8,32]{1,0}, bf16[16,32]{1,0}) all-gather-start(%q.0), dimensions={0}
  %one.done = bf16[16,32]{1,0} all-gather-done(%one)
  %two = (f32[8]{0}, f32[4]{0}) all-reduce-start(%q.0, %q.1), to_apply=%cond
  ROOT %r = bf16[8,4]{1,0} fusion(%q.0, %q.1), kind=kCustom, calls=%fused
}
"""


def test_matmuls_carry_operands_flops_and_runs():
    in_fusion, in_loop = sorted(hlo.read(TEXT).matmuls, key=lambda each: each.times)
    assert in_fusion.kernel == "dot"
    assert (in_fusion.flops, in_fusion.times) == (2 * 8 * 4 * 32, 1)
    assert in_loop.kernel == "__cublas$lt$matmul$f8"
    assert (in_loop.lhs, in_loop.rhs) == (Shape("f8e4m3fn", (16, 64)), Shape("f8e5m2", (32, 64)))
    assert (in_loop.out, in_loop.op_name) == (Shape("bf16", (16, 32)), "jit(f)/b")
    assert (in_loop.flops, in_loop.times) == (2 * 16 * 32 * 64, 15)  # a loop of 5 in one of 3
    assert hlo.read(TEXT).flops == 2 * 8 * 4 * 32 + 15 * 2 * 16 * 32 * 64


def test_kernels_carry_operands_and_are_counted_as_often_as_they_run():
    kernels = {each.target: each for each in hlo.read(TEXT).kernels}
    assert {name: each.times for name, each in kernels.items()} == {
        "start": 1,
        "__cublas$lt$matmul$f8": 15,
    }
    assert kernels["start"].operands == ()
    x, g, scale = Shape("f8e4m3fn", (16, 64)), Shape("f8e5m2", (32, 64)), Shape("f32", ())
    assert kernels["__cublas$lt$matmul$f8"].operands == (x, g, scale, scale)


def test_collectives_carry_what_they_move():
    found = hlo.read(TEXT).collective_bytes()
    assert found == {"all-gather": 16 * 32 * 2, "all-reduce": (8 + 4) * 4}


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="no HLO module"):
        hlo.read("nothing")
