#!/usr/bin/env bash
# From nothing to a language model of your own that answers: a corpus from the Python standard
# library, a tokenizer, pre-training, fine-tuning, preference learning, distillation, export, on the
# CPU. Needs Python 3.11 or newer and nothing else; about 5 minutes on 2 cores once everything is
# installed. Started again, it finds what is done and goes on from there.
#
#   scripts/quickstart.sh
#   PYTHON=python3.12 scripts/quickstart.sh       with another interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/environment.sh)
started=$SECONDS
dir=runs/quickstart

run() {
    printf '\n$ python -m' && printf ' %q' "$@" && echo
    "$python" -m "$@"
}

# A stage of training; how long it took is kept for the table at the end.
train() {
    local name=$1 began=$SECONDS
    shift
    run "jaxtrain.$name" "--config=configs/$name/tiny.py" "--workdir=$dir/$name" "$@"
    [ -e "$dir/$name.secs" ] || echo $((SECONDS - began)) >"$dir/$name.secs"
}

run jaxtrain.prepare --config=configs/corpus/code.py --workdir=$dir/corpus
run jaxtrain.tokenize train --input $dir/corpus --vocab_size 4096 --num_reserved 8 \
    --out $dir/tokenizer
for split in train heldout; do
    run jaxtrain.tokenize encode --input "$dir/corpus/$split/*.parquet" --tokenizer $dir/tokenizer \
        --out $dir/store/$split
done
train pretrain
run jaxtrain.generate --workdir=$dir/pretrain --prompt="def " --max_new_tokens=100

# Functions asked for in words: conversations, and pairs of a right and a wrong answer.
[ -e $dir/chats ] || "$python" scripts/stdlib_chats.py --out $dir/chats
rows() {
    run jaxtrain.tokenize "$1" --input "$dir/chats/$2.jsonl" --tokenizer "$3" --max_len 256 \
        --out "$dir/store/$4" "${@:5}"
}
rows chat train $dir/pretrain chat --chat_template seed
rows chat heldout $dir/pretrain chat-heldout --chat_template seed
train sft
rows answers pairs-train $dir/sft pairs
rows answers pairs-heldout $dir/sft pairs-heldout
train dpo
train distill

# Out as a Hugging Face model and in again: the same model, so the same text.
ask=(--chat --prompt="Return the sum of two numbers." --max_new_tokens=60 --temperature=0)
[ -e $dir/hf ] || run jaxtrain.export --workdir=$dir/dpo --out=$dir/hf --dtype=float32
[ -e $dir/imported ] || run jaxtrain.import_hf --model=$dir/hf --workdir=$dir/imported
run jaxtrain.generate --workdir=$dir/dpo "${ask[@]}"
run jaxtrain.generate --workdir=$dir/imported "${ask[@]}"

"$python" scripts/stages_table.py $dir pretrain sft dpo distill
cat <<TEXT

Done in $((SECONDS - started)) s. To go on:

  . ${python%/python}/activate
  python -m jaxtrain.generate --workdir=$dir/pretrain --prompt="class "
  python -m jaxtrain.inspect $dir/pretrain       # what is in the checkpoints
  python -m jaxtrain.config                              # every knob, for example a longer run:
  python -m jaxtrain.pretrain --config=configs/pretrain/tiny.py --workdir=runs/longer \\
      --config.loop.num_steps=2000
  scripts/test.sh                                        # the whole test suite
TEXT
