"""Post-training on real data: held-out scores before and after, of three seeds.

    python scripts/benchmarks/post_training [--shared=../shared] [--quickstart=WORKDIR]

Reads public files beside the project and starts from two models: stories260k, which lies among
them, and the quickstart's. Fine-tuning, reward models, DPO, IPO and KTO, and the distillation of
stories260k, each by its launcher; then the tables of docs/post-training-measured.md are written
anew. Rows are split by a hash of what the user says first. What is not there is left out, and said.
A second start runs what is missing only. About 25 minutes on 2 cores.
"""

import argparse
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from launched import ROOT, Runs
from plan import (
    DATA,
    MAX_LEN,
    QUICKSTART,
    STILL,
    STORIES,
    TEACHER_TEXT,
    Base,
    Task,
    chain,
    distillation,
)
from rows import openings, write
from table import Line, put_into, tables

_CONTROL_TOKENS = ("<|im_start|>", "<|im_end|>")  # of the chat template chatml
_CUTS = {"chat": ["--too_long=right"], "answers": ["--too_long=left", "--kl_group=2"]}
_SAMPLES = {"train": (16, 0), "heldout": (2, 1000)}  # of each opening, first seed
_MAX_STORY_TOKENS = 480


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    runs = Runs(options.out)
    tasks = []
    stories = options.shared.absolute() / "data" / "model-stories260k" / "hf"
    if stories.is_dir():
        model = runs.out / "bases" / STORIES.name
        added = [f"--add_token={token}" for token in _CONTROL_TOKENS]
        runs.make(model, "jaxtrain.import_hf", f"--model={stories}", f"--workdir={model}", *added)
        tasks += _chain(runs, options.shared / "data", STORIES, model)
        _write_stories(runs, stories)
        tasks += distillation(str(stories))
    else:
        print(f"left out: stories260k, as there is no {stories}")
    if (options.quickstart / "checkpoints").is_dir():
        tasks += _chain(runs, options.shared / "data", QUICKSTART, options.quickstart.absolute())
    else:
        print(f"left out: the quickstart's model, as there is none in {options.quickstart}")
    wanted = [task for task in tasks if not options.only or task.name in options.only]
    text = tables([line for task in wanted for line in _lines(runs, task, options.seeds)])
    print(text)
    if options.only is None:
        options.page.write_text(put_into(options.page.read_text(), text))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = pathlib.Path
    parser.add_argument("--shared", type=path, default=ROOT.parent / "shared", metavar="DIR")
    parser.add_argument(
        "--quickstart", type=path, default=ROOT / "runs" / "quickstart" / "pretrain", metavar="DIR"
    )
    parser.add_argument("--out", type=path, default=ROOT / "runs" / "post-training", metavar="DIR")
    parser.add_argument(
        "--page", type=path, default=ROOT / "docs" / "post-training-measured.md", metavar="FILE"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--only", nargs="+", metavar="TASK", help="show these, write no page")
    return parser


# --- data ---


def _chain(runs: Runs, data: pathlib.Path, base: Base, model: pathlib.Path) -> Iterable[Task]:
    """The tasks of a model, and their stores; leaves out tasks whose data are not there."""
    found = [each for each in DATA if each.exists(data)]
    for each in found:
        for split, path in each.split(data, runs.out / "rows").items():
            store = runs.out / "stores" / base.short / f"{each.name}-{split}"
            flags = [f"--input={path}", f"--tokenizer={model}", f"--max_len={MAX_LEN}"]
            flags += ["--chat_template=chatml", f"--out={store}", *_CUTS[each.command]]
            runs.make(store, "jaxtrain.tokenize", each.command, *flags)
    names = {each.name for each in found}
    for task in chain(base, str(model)):
        if names.issuperset(task.data):
            yield task._replace(data=tuple(f"{base.short}/{name}" for name in task.data))
        else:
            print(f"left out: {task.name}, as {data} lacks {', '.join({*task.data} - names)}")


def _write_stories(runs: Runs, teacher: pathlib.Path) -> None:
    """The teacher's text and its stores."""
    prompts = runs.out / "rows" / "openings.jsonl"
    write(prompts, openings())
    for split, (num_samples, seed) in _SAMPLES.items():
        text = runs.out / "rows" / f"{TEACHER_TEXT}-{split}.jsonl"
        drawing = [f"--num_samples={num_samples}", f"--seed={seed}", "--temperature=1"]
        drawing += [f"--max_new_tokens={_MAX_STORY_TOKENS}", "--num_slots=64"]
        given = [f"--model={teacher}", "--plain", f"--input={prompts}", f"--output={text}"]
        runs.make(text, "jaxtrain.distill_text", *given, *drawing)
        store = runs.out / "stores" / f"{TEACHER_TEXT}-{split}"
        flags = [f"--input={text}", f"--tokenizer={teacher}", f"--out={store}"]
        runs.make(store, "jaxtrain.tokenize", "encode", *flags, "--form=bos text")


def _num_documents(runs: Runs, store: str) -> str:
    """Rows of both splits, as the table has them."""
    counts = []
    for split in ("train", "heldout"):
        folder = runs.out / "stores" / f"{store}-{split}"
        ledger = folder / "ledger.json"  # answers have several documents to a row
        made = json.loads((ledger if ledger.exists() else folder / "store.json").read_text())
        counts.append(made["rows_out"] if "rows_out" in made else made["num_documents"])
    return " / ".join(f"{count:,}" for count in counts)


# --- runs ---


def _lines(runs: Runs, task: Task, num_seeds: int) -> Iterable[Line]:
    """Trains with each seed; one line of the table for each of the task's held-out sets."""
    stage, flags = task.stage, task.flags
    if task.measured_as is not None:
        stage, flags = "distill", task.measured_as
    still = flags | STILL
    before = runs.train(
        f"{task.name}-before", stage, _start(runs, task, 0), task.data, still | {"loop.seed": 0}
    )
    after, secs = [], []
    for seed in range(num_seeds):
        name = f"{task.name}-{seed}"
        given = task.flags | {"loop.seed": seed}
        run = runs.train(name, task.stage, _start(runs, task, seed), task.data, given)
        secs.append(run["secs"])
        if task.measured_as is not None:
            model = str(runs.out / "runs" / name)
            run = runs.train(f"{name}-measured", stage, model, task.data, still)
        after.append(run["scores"])
    for store in task.data:
        cells = {
            "method": task.title,
            "model": task.base,
            "data": store.rpartition("/")[2],
            "rows, held-out": _num_documents(runs, store),
            "seeds": str(num_seeds),
            "steps": str(task.flags["loop.num_steps"]),
            "rate": f"{task.flags['optim.lr']:g}",
        }
        prefix = "eval/" + (f"{store.rpartition('/')[2]}/" if len(task.data) > 1 else "")
        scores = {
            heading: (
                _score(before["scores"], prefix, keys),
                [_score(each, prefix, keys) for each in after],
            )
            for heading, keys in task.scores.items()
        }
        yield Line(cells, scores, secs)


def _score(scores: Mapping[str, float], prefix: str, keys: Sequence[str]) -> float:
    first, *others = (scores[prefix + key] for key in keys)
    return first - sum(others)


def _start(runs: Runs, task: Task, seed: int) -> str:
    """The model that a run starts from."""
    is_path = task.start == "student" or pathlib.Path(task.start).is_absolute()
    return task.start if is_path else str(runs.out / "runs" / f"{task.start}-{seed}")


if __name__ == "__main__":
    main()
