#!/usr/bin/env bash
# From nothing to a language model of your own: a corpus from the Python standard library, a
# tokenizer, a token store, a few hundred training steps on the CPU, a sample. Needs Python 3.11 or
# newer and nothing else; about 2 minutes on 2 cores once everything is installed. Started again, it
# finds what is done and goes on from there.
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

run jaxtrain.prepare --config=configs/corpus/code.py --workdir=$dir/corpus
run jaxtrain.tokenize train --input $dir/corpus --vocab_size 4096 --out $dir/tokenizer
for split in train heldout; do
    run jaxtrain.tokenize encode --input "$dir/corpus/$split/*.parquet" --tokenizer $dir/tokenizer \
        --out $dir/store/$split
done
run jaxtrain.pretrain --config=configs/pretrain/tiny.py --workdir=$dir/pretrain

run jaxtrain.generate --workdir=$dir/pretrain --prompt="def " --max_new_tokens=100

# Out as a Hugging Face model and in again: the same model, so the same text.
[ -e $dir/hf ] || run jaxtrain.export --workdir=$dir/pretrain --out=$dir/hf --dtype=float32
[ -e $dir/imported ] || run jaxtrain.import_hf --model=$dir/hf --workdir=$dir/imported
run jaxtrain.generate --workdir=$dir/imported --prompt="def " --max_new_tokens=100

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
