"""The ledger of a run's data: what is read how often, and where every token goes."""

from dataclasses import dataclass

from jaxtrain.data.answers import STEPS
from jaxtrain.data.packing import Ledger


@dataclass(frozen=True)
class SourceReport:
    """One source's part of a run."""

    name: str
    draws: int  # rows taken over the run
    ledger: Ledger  # of one epoch
    unverified_bytes: int = 0  # of a store too large to be hashed when it is opened
    answers: str | None = None  # which of `answers.KINDS` its documents are
    num_groups: int = 0  # of answers that are judged together

    @property
    def epochs(self) -> float:
        return self.draws / max(self.ledger.num_rows, 1)

    @property
    def tokens(self) -> float:
        """Tokens taken over the run; exact where it ends with an epoch."""
        return self.epochs * self.ledger.tokens_out

    @property
    def not_verified(self) -> str:
        """Says of a store whose content was not compared with its hashes how to do it."""
        if not self.unverified_bytes:
            return ""
        return (
            f"; {self.unverified_bytes / 1e9:,.1f} GB not verified "
            "(python -m jaxtrain.tokenize verify)"
        )

    @property
    def documents(self) -> str:
        """Says how many there are and, of text, how many are cut."""
        ledger = self.ledger
        if self.answers is None:
            return f"{ledger.num_cut_documents:,} of {ledger.num_documents:,} documents cut"
        return (
            f"{ledger.num_documents:,} answers in {self.num_groups:,} groups of kind "
            f"{self.answers!r}, none cut"
        )

    @property
    def trained(self) -> str:
        """Says how many tokens are trained."""
        return f"{self.ledger.num_targets:,} " + (
            "steps judged" if self.answers == STEPS else "trained"
        )

    @property
    def rows_not_reached(self) -> int:
        """Rows that no draw takes, in a run of less than an epoch."""
        return max(self.ledger.num_rows - self.draws, 0)


@dataclass(frozen=True)
class Report:
    """What the first `num_steps` batches take from each source. `str()` is what the log shows."""

    num_steps: int
    num_rows: int  # of all batches, filler rows included
    available_steps: int | None  # None: without end
    filler_rows: int
    packing: str
    exhausted: str
    sources: tuple[SourceReport, ...]

    def __str__(self) -> str:
        rows = max(self.num_rows - self.filler_rows, 1)
        tokens = max(sum(source.tokens for source in self.sources), 1)
        lines = [
            f"{self.num_steps:,} steps, {self.num_rows:,} rows in all, packing={self.packing}; "
            + self._policy()
        ]
        for source in self.sources:
            ledger = source.ledger
            lines.append(
                f"  {source.name}: {source.draws / rows:.1%} of rows, "
                f"{source.tokens / tokens:.1%} of tokens, {source.epochs:.1f} epochs "
                f"({source.rows_not_reached:,} of {ledger.num_rows:,} rows not reached); an epoch: "
                f"{ledger.tokens_in:,} tokens in = {ledger.tokens_out:,} out + "
                f"{ledger.tokens_dropped:,} dropped, {ledger.utilisation:.1%} of positions filled, "
                f"{source.documents}, at most {ledger.max_segments:,} segments in a row, "
                f"{source.trained}"
                f"{source.not_verified}"
            )
        return "\n".join(lines)

    def _policy(self) -> str:
        if self.exhausted == "repeat":
            return "exhausted=repeat: a source read to its end begins again in another order"
        return (
            f"exhausted=stop: each source is read once, {self.available_steps:,} steps in all; "
            f"{self.filler_rows:,} rows of the last batch are filler"
        )
