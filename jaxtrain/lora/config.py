"""`LoraConfig`: section `lora` of the config."""

import dataclasses
import math

from jaxtrain.options import option


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank updates of a frozen model, in place of training all of it."""

    rank: int | None = option(
        None, "Rank of the trained updates of the frozen model init.from; None trains the model."
    )
    alpha: float = option(16.0, "An update counts alpha / rank times.")
    targets: tuple[str, ...] = option(
        ("*.attention.*", "*.ffn.*"),
        "Patterns of the dotted paths of matrices that get an update, such as *.w_q_DNH.",
    )
    base_dtype: str = option(
        "float32",
        "Format that the frozen matrices are held in (norms and biases stay float32).",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank={self.rank} must be at least 1 (None trains the whole model).")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha={self.alpha} must be > 0 and finite.")
        if not self.targets:
            raise ValueError("targets is empty; name matrices, or leave it at its default.")

    @property
    def scale(self) -> float:
        """alpha / rank."""
        assert self.rank is not None, "no rank, no updates"
        return self.alpha / self.rank
