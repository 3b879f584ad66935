"""What is run: models, data, and the tasks with their rates."""

from typing import Any, NamedTuple

from rows import DataSet

MAX_LEN = 512  # tokens of a conversation, or of a prompt with one answer: stories260k's context
TEACHER_TEXT = "teacher-text"
CHATS = ("self-instruct", "oasst-messages")

DATA = (
    DataSet("self-instruct", "sft/self-instruct-seed_tasks.jsonl.gz", 5, "chat"),
    DataSet("oasst-messages", "sft/oasst-messages.jsonl.gz", 5, "chat"),
    DataSet("hh-rlhf", "pref/hh-rlhf-harmless-base-test.jsonl.gz", 10, "answers"),
    DataSet("oasst-pairs", "pref/oasst-pairs.jsonl.gz", 5, "answers"),
    DataSet(
        "hh-rlhf-judged", "pref/hh-rlhf-harmless-base-test.jsonl.gz", 10, "answers", judged=True
    ),
    DataSet("kto_en_demo", "pref/kto_en_demo.json.gz", 5, "answers"),
)

#: Flags with which a run measures the model that it starts from: its one update is far below the
#: spacing of float32, so that no parameter changes.
STILL = {"loop.num_steps": 1, "optim.lr": 1e-30, "optim.warmup_steps": 0}

# Held-out scores by heading; of two keys, the first less the second.
_CHAT_SCORES = {"nats per trained token": ("loss",), "next token right": ("accuracy",)}
_ANSWER_SCORES = {
    "loss": ("loss",),
    "right": ("accuracy",),
    "rewards, better less worse": ("rewards/chosen", "rewards/rejected"),
}
_STUDENT_SCORES = {
    "KL from the teacher": ("kl",),
    "nats per token": ("nll",),
    "same likeliest token": ("agreement",),
}


class Method(NamedTuple):
    """What several tasks have in common."""

    title: str
    stage: str
    group: int  # answers, at most, of what is packed as one
    scores: dict[str, tuple[str, ...]]


_METHODS = {
    "sft": Method("SFT", "sft", 1, _CHAT_SCORES),
    "reward": Method("reward model", "reward", 2, _ANSWER_SCORES),
    "dpo": Method("DPO", "dpo", 2, _ANSWER_SCORES),
    "ipo": Method("IPO", "dpo", 2, _ANSWER_SCORES),
    "kto": Method("KTO", "dpo", 6, _ANSWER_SCORES),
}


class Task(NamedTuple):
    """One method from one model."""

    name: str  # of its workdirs
    title: str
    base: str  # as the table says
    stage: str
    start: str  # a task, whose model of the same seed it starts from; or a model
    data: tuple[str, ...]
    flags: dict[str, Any]
    scores: dict[str, tuple[str, ...]]  # by heading: keys of held-out scores
    measured_as: dict[str, Any] | None = None  # flags of `distill`, where another stage trains


class Rate(NamedTuple):
    """How one method is trained."""

    positions: int  # of a batch, in rows of 512 tokens
    num_steps: int
    lr: float


class Base(NamedTuple):
    """A model to start from, and what is made of it."""

    name: str
    rates: dict[str, Rate]  # by method, and data where methods have several

    @property
    def short(self) -> str:
        """Its name in names of files."""
        return self.name.partition(",")[0]


# Steps of a reward model or DPO: a third of an epoch of hh-rlhf, two of the few pairs of OASST.
STORIES = Base(
    "stories260k",
    {
        "sft": Rate(4, 100, 1e-3),
        "reward hh-rlhf": Rate(8, 100, 5e-4),
        "reward oasst-pairs": Rate(8, 20, 2e-4),
        "dpo hh-rlhf": Rate(8, 80, 3e-5),
        "dpo oasst-pairs": Rate(8, 20, 2e-5),
        "ipo hh-rlhf": Rate(8, 80, 3e-5),
        "kto hh-rlhf-judged": Rate(12, 60, 5e-5),
        "kto kto_en_demo": Rate(12, 20, 1e-5),
    },
)
QUICKSTART = Base(
    "quickstart, 5M",
    {
        "sft": Rate(4, 80, 5e-4),
        "reward hh-rlhf": Rate(8, 60, 1e-4),
        "reward oasst-pairs": Rate(8, 20, 1e-4),
        "dpo hh-rlhf": Rate(8, 60, 5e-5),
        "dpo oasst-pairs": Rate(8, 20, 5e-5),
    },
)


def chain(base: Base, model: str) -> list[Task]:
    """Fine-tuning of a model, and what starts from the fine-tuned one."""
    tasks = []
    for key, rate in base.rates.items():
        method, _, data = key.partition(" ")
        kind = _METHODS[method]
        flags = {
            "data.batch_size": rate.positions // kind.group,
            "data.seq_len": MAX_LEN * kind.group,  # answers that are compared stand in one row
            "loop.num_steps": rate.num_steps,
            "optim.lr": rate.lr,
        }
        if kind.stage == "dpo":
            flags |= {"loss.kind": method, "reference.runs": "in_step"}
        name = "-".join([base.short, method, *([data] if data else [])])
        start = model if method == "sft" else f"{base.short}-sft"
        names = (data,) if data else CHATS
        task = Task(name, kind.title, base.name, kind.stage, start, names, flags, kind.scores)
        tasks.append(task)
    return tasks


def distillation(teacher: str) -> list[Task]:
    """A small model learns what stories260k writes, by its text and by its probabilities."""
    rate = {"loop.num_steps": 300, "optim.lr": 2e-2, "optim.warmup_steps": 20}
    shape = {"data.batch_size": 4, "data.seq_len": MAX_LEN, "data.packing": "concat"}
    flags, taught = rate | shape, {"teacher.from": teacher}

    def task(name: str, title: str, stage: str, **rest) -> Task:
        base, data = "stories260k → 63K", (TEACHER_TEXT,)
        return Task(name, title, base, stage, "student", data, scores=_STUDENT_SCORES, **rest)

    return [
        task("text", "text", "pretrain", flags=flags, measured_as=shape | taught),
        task("logits", "logits", "distill", flags=flags | taught),
    ]
