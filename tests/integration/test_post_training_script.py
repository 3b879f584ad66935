"""Parts of scripts/benchmarks/post_training that need no data: splitting rows, writing tables."""

import gzip
import json
import sys

import pytest


@pytest.fixture(scope="module")
def parts(root_dir):
    """The script's own modules, by the names that it imports them by."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root_dir / "scripts" / "benchmarks" / "post_training"))
        import plan
        import rows
        import table

        yield {"plan": plan, "rows": rows, "table": table}
        for name in ("plan", "rows", "table"):
            sys.modules.pop(name)


FORMS = [
    lambda text: {"instruction": text, "instances": []},
    lambda text: {"messages": [{"role": "user", "content": text}, {"role": "assistant"}]},
    lambda text: {
        "prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": text}]
    },
    lambda text: {"chosen": f"\n\nHuman: {text}\n\nAssistant: a\n\nHuman: b", "rejected": ""},
]


def test_split_follows_what_the_user_says_first_in_every_form(parts):
    sides = [
        [parts["rows"].is_heldout(form(f"question {number}"), 5) for number in range(200)]
        for form in FORMS
    ]
    assert all(each == sides[0] for each in sides)
    assert 20 <= sum(sides[0]) <= 60  # one in five


def test_data_set_is_split_without_loss(parts, tmp_path):
    texts = [{"instruction": f"task {number}", "answer": "é\u2028"} for number in range(50)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in texts)
    (tmp_path / "tasks.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    data = parts["rows"].DataSet("tasks", "tasks.jsonl.gz", 5, "chat")
    assert data.exists(tmp_path)
    assert not data.exists(tmp_path / "elsewhere")
    found = data.split(tmp_path, tmp_path / "rows")
    kept = {
        split: [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        for split, path in found.items()
    }
    assert kept["train"]
    assert kept["heldout"]
    assert sorted(map(str, kept["train"] + kept["heldout"])) == sorted(map(str, texts))


def test_every_task_starts_from_one_before_it_or_a_model(parts):
    plan = parts["plan"]
    for base in (plan.STORIES, plan.QUICKSTART):
        known = {"MODEL"}
        for task in plan.chain(base, "MODEL"):
            assert task.start in known
            known.add(task.name)


def test_table_has_mean_least_and_largest_of_the_seeds(parts):
    table = parts["table"]
    scores = {"loss": (0.6931, [0.5, 0.6, 0.7]), "right": (0.5, [0.75])}
    line = table.Line({"method": "DPO"}, scores, [10, 20])
    other = table.Line({"method": "SFT"}, {"nats": (4, [3.0])}, [7])
    assert table.tables([line, other, line]).splitlines() == [
        "| method | loss | right | CPU s |",
        "| --- | --- | --- | --- |",
        *["| DPO | 0.693 → 0.600 (0.500 to 0.700) | 0.500 → 0.750 | 15 |"] * 2,
        "",
        "| method | nats | CPU s |",
        "| --- | --- | --- |",
        "| SFT | 4.000 → 3.000 | 7 |",
    ]


def test_page_gets_the_tables_between_its_marks_and_keeps_all_else(parts):
    table = parts["table"]
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    once = table.put_into(page, "new")
    assert once == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter\n"
    assert table.put_into(once, "new") == once


@pytest.mark.parametrize("page", ["", "{END}{BEGIN}", "{BEGIN}", "{BEGIN}{BEGIN}{END}"])
def test_page_without_both_marks_is_refused(parts, page):
    table = parts["table"]
    text = page.format(BEGIN=table.BEGIN, END=table.END)
    with pytest.raises(ValueError, match=r"tables: begin.*once each"):
        table.put_into(text, "new")


def test_committed_page_has_the_marks(parts, root_dir):
    page = (root_dir / "docs" / "post-training-measured.md").read_text()
    parts["table"].put_into(page, "")


def test_judged_answers_are_in_turn_chosen_and_rejected_without_the_prompt_twice(parts):
    pairs = [
        {
            "chosen": f"\n\nHuman: q{number}\n\nAssistant: a\nb\n\nHuman: r\n\nAssistant: good",
            "rejected": f"\n\nHuman: q{number}\n\nAssistant: a\nb\n\nHuman: r\n\nAssistant: bad",
        }
        for number in range(2)
    ]
    good, bad = parts["rows"].judged(pairs)
    assert (good["label"], bad["label"]) == (True, False)
    assert [(each["role"], each["content"]) for each in bad["messages"]] == [
        ("user", "q1"),
        ("assistant", "a\nb"),
        ("user", "r"),
        ("assistant", "bad"),
    ]
    assert good["messages"][-1]["content"] == "good"
