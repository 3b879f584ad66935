"""Many requests through one compiled loop: slots, admission, and what each request has drawn.

    engine = Engine(model, params, max_len=2048, num_slots=16)
    engine.submit(Request(ids, max_new_tokens=100))
    while engine.is_busy: for emitted in engine.step(): …

A request takes a free slot when there is one and leaves it when it is done, while the others go
on (continuous batching). Its prompt runs alone, its tokens in one program of fixed shape with
whatever is in the other slots, its random numbers are its own: what it gets does not depend on the
others.
"""

import dataclasses
import functools
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxtrain.decode.draft import Draft, Pair
from jaxtrain.decode.forward import Forward, take_apart
from jaxtrain.decode.sampling import Sampling, Settings
from jaxtrain.decode.slots import MAX_STOP_IDS, Admission, Drawn, Slots
from jaxtrain.decode.speculative import SpeculativeSlots
from jaxtrain.models.parameters import Split, Tree

MAX_TOP_LOGPROBS = 20
_SMALLEST_PROMPT = 16  # prompts are filled up to this, or a power of two: few compilations

Finish = Literal["stop", "length", "failed"]


class NotFinite(RuntimeError):
    """A model has no probabilities to draw from."""

    def __init__(self, request: int, num_drawn: int) -> None:
        super().__init__(
            f"request {request}: after {num_drawn} more tokens the model's logits are NaN or "
            "infinite; its weights are damaged, or its precision does not hold them"
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt and how to go on from it."""

    ids: Sequence[int]  # of the prompt, BOS where the model wants one
    max_new_tokens: int
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    stop_ids: Sequence[int] = ()  # the first of them drawn ends the answer, and is its last id
    num_top_logprobs: int = 0  # also report so many of the likeliest ids at each place


class Emitted(NamedTuple):
    """What a request has drawn in one step."""

    request: int  # as `submit` numbered it
    ids: list[int]
    logprobs: list[float]  # of `ids` under the model, nats
    top: list[list[tuple[int, float]]]  # at each place (id, log-probability), likeliest first
    finish: Finish | None  # why it is done, "failed": logits were not finite; None: it goes on


@dataclasses.dataclass
class _Slot:
    request: int
    stop_ids: frozenset[int]
    num_top: int
    filters: bool


class Engine:
    """Generation of many requests with one model.

    Args:
      model: the decoder's structure (`models.parameters.split`).
      params: its parameters, on the mesh that they are sharded over; the engine keeps a copy.
      max_len: tokens that prompt and answer may have together: the size of the cache.
      num_slots: requests that run at the same time.
      never: ids that are not drawn, because the tokenizer does not have them or reserves them.
      chunk: turns of the loop between two looks at the result: tokens of each request, or
        with a draft up to 1 + draft.num_tokens times as many.
      draft: what proposes tokens; what is drawn does not depend on it.
    """

    def __init__(
        self,
        model: Split,
        params: Tree,
        *,
        max_len: int,
        num_slots: int,
        never: Sequence[int] = (),
        chunk: int = 16,
        draft: Draft | None = None,
    ) -> None:
        if max_len < 2 or num_slots < 1 or chunk < 1:
            raise ValueError(
                f"max_len={max_len} must be at least 2, num_slots={num_slots} and chunk={chunk} "
                "at least 1"
            )
        self.forward = Forward(model)
        self.config = self.forward.config
        self.max_len, self.num_slots = max_len, num_slots
        self._params: Any = jax.jit(functools.partial(take_apart, config=self.config))(params)
        may_draw_V = np.ones(self.config.vocab_size, bool)
        may_draw_V[list(never)] = False
        shape: Any = {
            "max_len": max_len, "num_slots": num_slots, "may_draw_V": may_draw_V, "chunk": chunk
        }  # fmt: skip
        if draft is None:
            self._programs = Slots(self.forward, **shape)
        else:
            proposer = draft.proposer(self.forward)
            self._programs = SpeculativeSlots(self.forward, proposer, draft.num_tokens, **shape)
            self._params = Pair(self._params, draft.parameters(params))
        self._state = self._programs.empty()
        self._waiting: deque[tuple[int, Request]] = deque()
        self._slots: list[_Slot | None] = [None] * num_slots
        self._numbers = itertools.count()
        #: (tokens that the draft proposed and the model drew too, all that it proposed)
        self.num_drafted = (0, 0)
        self.has_draft = draft is not None

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting) or any(self._slots)

    def submit(self, request: Request) -> int:
        """Takes a request; returns the number under which `step` reports it.

        An answer is cut, with finish "length", where prompt and answer reach max_len.

        Raises:
          ValueError: for a prompt that leaves no room, or ids and settings that are no such.
        """
        length = len(request.ids)
        if not 1 <= length < self.max_len:
            raise ValueError(
                f"the prompt has {length} tokens, but must have from 1 to {self.max_len - 1}: "
                f"prompt and answer share max_len={self.max_len}"
            )
        if request.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={request.max_new_tokens} must be at least 1")
        wrong = [i for i in request.ids if not 0 <= i < self.config.vocab_size]
        if wrong:
            raise ValueError(f"the prompt has id {wrong[0]}, not below {self.config.vocab_size}")
        if len(request.stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"{len(request.stop_ids)} stop ids are more than {MAX_STOP_IDS}")
        if not 0 <= request.num_top_logprobs <= MAX_TOP_LOGPROBS:
            raise ValueError(
                f"num_top_logprobs={request.num_top_logprobs} must be from 0 to {MAX_TOP_LOGPROBS}"
            )
        number = next(self._numbers)
        self._waiting.append((number, request))
        return number

    def cancel(self, number: int) -> None:
        """Ends a request wherever it is; nothing more of it is emitted."""
        self._waiting = deque(item for item in self._waiting if item[0] != number)
        for index, slot in enumerate(self._slots):
            if slot and slot.request == number:
                self._free(index, is_active=True)

    def step(self) -> list[Emitted]:
        """Admits what has room, draws up to `chunk` tokens for each, and tells what came of it."""
        self._fill_slots()
        running = [slot for slot in self._slots if slot]
        if not running:
            return []
        self._state, drawn = self._programs.run(
            self._params,
            self._state,
            bool(self._waiting),
            filters=any(slot.filters for slot in running),
            num_top=min(MAX_TOP_LOGPROBS, int(self._programs.may_draw_V.sum()))
            if any(slot.num_top for slot in running)
            else 0,
        )
        drawn = Drawn(*map(np.asarray, drawn))
        is_active = np.asarray(self._state.is_active_B)
        accepted, proposed = self._programs.count_drafted(drawn.ids, is_active)
        self.num_drafted = self.num_drafted[0] + accepted, self.num_drafted[1] + proposed
        emitted = []
        for index, slot in enumerate(self._slots):
            if slot:
                new = _emitted(slot, index, drawn, bool(is_active[index]))
                emitted.append(new)
                if new.finish is not None:
                    self._free(index, bool(is_active[index]))
        return emitted

    def _free(self, index: int, is_active: bool) -> None:
        if is_active:
            self._state = self._programs.retire(self._state, np.int32(index))
        self._slots[index] = None

    def generate(self, requests: Iterable[Request]) -> Iterator[Emitted]:
        """All of `requests`, numbered from 0 in their order, as it comes; the engine must be idle.

        They are taken one by one as slots get free, so that there can be any number of them.

        Raises:
          NotFinite: where the model's logits are not.
        """
        if self.is_busy:
            raise ValueError("the engine is at work; wait until it is idle")
        self._numbers = itertools.count()
        source = iter(requests)
        while True:
            room = self._slots.count(None) - len(self._waiting)
            for request in itertools.islice(source, max(room, 1 - len(self._waiting))):
                self.submit(request)
            if not self.is_busy:
                return
            for emitted in self.step():
                if emitted.finish == "failed":
                    raise NotFinite(emitted.request, len(emitted.ids))
                yield emitted

    def _fill_slots(self) -> None:
        prompt: Any = None
        ids: Sequence[int] = ()
        for index, slot in enumerate(self._slots):
            if slot or not self._waiting:
                continue
            number, request = self._waiting.popleft()
            if prompt is None or list(ids) != list(request.ids):  # samples of one prompt share it
                prompt, ids = self._run_prompt(request.ids), request.ids
            self._slots[index] = _Slot(
                number,
                frozenset(request.stop_ids),
                request.num_top_logprobs,
                request.sampling.filters,
            )
            self._state = self._programs.admit(
                self._state, np.int32(index), prompt, self._admission(request)
            )

    def _run_prompt(self, ids: Sequence[int]) -> Any:
        size = min(max(_SMALLEST_PROMPT, 1 << math.ceil(math.log2(len(ids)))), self.max_len)
        row = np.zeros((1, size), np.int32)
        row[0, : len(ids)] = ids
        return self._programs.prompt(self._params, row, np.array([len(ids)], np.int32))

    def _admission(self, request: Request) -> Admission:
        seen_V = np.zeros(self.config.vocab_size, bool)
        seen_V[list(request.ids)] = True
        room = self.max_len - len(request.ids)
        stop_ids = np.full(MAX_STOP_IDS, -1, np.int32)
        stop_ids[: len(request.stop_ids)] = list(request.stop_ids)
        sampling = request.sampling
        settings = Settings(
            np.float32(sampling.temperature),
            np.int32(sampling.top_k or self.config.vocab_size),
            np.float32(sampling.top_p),
            np.float32(sampling.min_p),
            np.float32(sampling.repetition_penalty),
        )
        return Admission(
            np.int32(len(request.ids)),
            np.int32(min(request.max_new_tokens, room)),
            seen_V,
            settings,
            np.asarray(jax.random.key_data(jax.random.key(sampling.seed))),
            stop_ids,
        )


def _emitted(slot: _Slot, index: int, drawn: Drawn, is_active: bool) -> Emitted:
    of_slot = Drawn(*(each[index, drawn.ids[index] >= 0] for each in drawn))
    count = len(of_slot.ids)
    num_finite = int(np.cumprod(np.isfinite(of_slot.logprobs)).sum())
    ids = of_slot.ids[:num_finite].tolist()
    finish: Finish | None = None
    if num_finite < count:
        count, finish = num_finite, "failed"
    elif not is_active:
        finish = "stop" if ids and ids[-1] in slot.stop_ids else "length"
    top = [
        list(
            zip(place_ids[: slot.num_top].tolist(), logprobs[: slot.num_top].tolist(), strict=True)
        )
        for place_ids, logprobs in zip(
            of_slot.top_ids[:count], of_slot.top_logprobs[:count], strict=True
        )
    ]
    return Emitted(slot.request, ids, of_slot.logprobs[:count].tolist(), top, finish)
