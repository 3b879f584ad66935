"""Whether a run continues what a checkpoint was trained on: data, tokenizer, held-out sets, rate.

Each function compares a checkpoint's metadata with the present config or stores and returns a line
for every difference; `starting_point.py` decides which of them stop a run and which are said.
"""

from collections.abc import Mapping
from typing import Any

from jaxtrain import config as config_lib
from jaxtrain.data.config import DataConfig
from jaxtrain.data.metadata import TAUGHT_FROM
from jaxtrain.optim import schedules
from jaxtrain.optim.config import OptimConfig
from jaxtrain.run_config import RunConfig

Metadata = Mapping[str, Any]


def other_batches(metadata: Metadata, config: RunConfig, step: int) -> list[str]:
    """What makes the batches before `step` others than the checkpoint's, stores aside.

    Schedules of weights and batch sizes may change from `step` on, not before.
    """
    saved = metadata["config"]
    seeds = {"loop": {"seed": saved["loop"]["seed"]}}, {"loop": {"seed": config.loop.seed}}
    changed = list(config_lib.differences(*seeds))
    try:
        data = config_lib.resolve(DataConfig, saved["data"], "config.data")
    except ValueError as error:  # of another version
        return [*changed, str(error)]
    past, now = (config_lib.to_plain(each.until(step)) for each in (data, config.data))
    return [*changed, *config_lib.differences(past, now, "config.data")]


def other_stores(metadata: Metadata, stores: Metadata, step: int) -> list[str]:
    """Stores that hold other data than the checkpoint's of the same name; `stores` by name."""
    return [
        f"config.data.sources.{name} holds other data than at the checkpoint of step {step} "
        f"(fingerprint {store['fingerprint'][:12]}, was {before['fingerprint'][:12]})"
        for name, store in stores.items()
        if (before := metadata["data"].get(name)) and before["fingerprint"] != store["fingerprint"]
    ]


def other_tokenizers(metadata: Metadata, stores: Metadata) -> list[str]:
    """Stores made with another tokenizer than the checkpoint's: the same ids are other tokens.

    One that has only given reserved ids a meaning, as control tokens of a chat, is not another.
    """
    saved = {store["tokenizer_sha256"] for store in metadata["data"].values()}
    return [
        f"config.data.sources.{name} was made with the tokenizer {store['tokenizer_sha256'][:12]}, "
        f"the checkpoint's with {', '.join(sorted(sha[:12] for sha in saved))}"
        for name, store in stores.items()
        if not saved & {store["tokenizer_sha256"], store.get(TAUGHT_FROM)}
    ]


def other_heldout(metadata: Metadata, fingerprints: Mapping[str, str]) -> list[str]:
    """Held-out sets that are new, gone or other than the checkpoint's; `fingerprints` by name."""
    saved = metadata.get("heldout")
    if saved is None:  # of a version that did not record them
        return []
    names = sorted(saved.keys() | fingerprints.keys())
    return [name for name in names if saved.get(name) != fingerprints.get(name)]


def other_updates(metadata: Metadata, config: RunConfig) -> list[str]:
    """Differences of config.lora from the checkpoint's."""
    saved = config_lib.fill(type(config), metadata["config"])
    return list(
        config_lib.differences(saved["lora"], config_lib.to_plain(config.lora), "config.lora")
    )


def rising_rate(metadata: Metadata, config: RunConfig) -> list[str]:
    """Whether another `loop.num_steps` lifts a rate whose decay had begun at the checkpoint."""
    saved, updates, num_steps = metadata["config"], metadata["updates"], config.loop.num_steps
    if saved["loop"]["num_steps"] == num_steps:
        return []
    decay_start, old = _schedule(
        config_lib.resolve(OptimConfig, saved["optim"], "config.optim"),
        config_lib.resolve(DataConfig, saved["data"], "config.data"),
        saved["loop"]["num_steps"],
    )
    _, new = _schedule(config.optim, config.data, num_steps)
    last, following = float(old(max(updates - 1, 0))), float(new(updates))
    if updates <= decay_start or following <= last * (1 + 1e-6):
        return []
    return [
        f"the learning rate rises again from {last:.3g} to {following:.3g}: the checkpoint lies "
        f"inside the decay of a run of {saved['loop']['num_steps']} steps, which "
        f"config.loop.num_steps={num_steps} moves. To avoid it, branch from a checkpoint before "
        "the decay (config.init.from)"
    ]


def _schedule(
    optim: OptimConfig, data: DataConfig, num_steps: int
) -> tuple[int, schedules.Schedule]:
    """(updates at which the decay begins, the rate as a function of updates)."""
    tokens = data.positions_per_step()
    try:
        at = schedules.phases(optim, num_steps, tokens)
    except ValueError as error:
        raise ValueError(f"config.optim.{error}") from error
    return at.decay_start, schedules.make_schedule(optim, at, tokens)
