"""Tokens of a run as a function of its steps, for lengths that are given in tokens.

A step's tokens are one number, or, where the batch size changes over the run, pairs (first step,
tokens per step from there on).
"""

from collections.abc import Sequence

TokensPerStep = int | Sequence[tuple[int, int]]


def stages(tokens_per_step: TokensPerStep) -> tuple[tuple[int, int], ...]:
    """`tokens_per_step` as pairs (first step, tokens per step), the first of them at step 0."""
    if isinstance(tokens_per_step, int):
        return ((0, tokens_per_step),)
    pairs = tuple(tokens_per_step)
    starts = [start for start, _ in pairs]
    assert starts[:1] == [0], f"{pairs}: the first stage begins at step 0"
    assert starts == sorted(set(starts)), f"{pairs}: stages are in order and differ"
    return pairs


def tokens_before(step: int, tokens_per_step: TokensPerStep) -> int:
    """Tokens in the first `step` steps."""
    pairs = stages(tokens_per_step)
    ends = [start for start, _ in pairs[1:]] + [step]
    return sum(
        tokens * max(0, min(end, step) - start)
        for (start, tokens), end in zip(pairs, ends, strict=True)
    )
