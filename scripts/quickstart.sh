#!/usr/bin/env bash
# From nothing to a language model of your own: a corpus from the Python standard library, a
# tokenizer, a token store, a few hundred training steps on the CPU, a sample. Needs Python 3.11 or
# newer and nothing else; about 5 minutes on 2 cores once everything is installed. Started again, it
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

run jaxtrain.prepare --config=configs/corpus/stdlib.py --workdir=$dir/corpus
run jaxtrain.tokenize train --input $dir/corpus/train.jsonl --vocab_size 4096 --out $dir/tokenizer.json
for split in train heldout; do
    run jaxtrain.tokenize encode --input $dir/corpus/$split.jsonl --tokenizer $dir/tokenizer.json \
        --out $dir/store/$split
done
run jaxtrain.pretrain --config=configs/pretrain/tiny.py --workdir=$dir/pretrain

printf '\nbits per byte of the held-out text, model beside compressors:\n'
"$python" - $dir/pretrain/metrics.jsonl $dir/corpus/card.json <<'PYTHON'
import json, sys
metrics, card = (open(name).read() for name in sys.argv[1:])
scores = [line for line in map(json.loads, metrics.splitlines()) if "eval/bits_per_byte" in line]
for score in scores:
    loss = score["eval/loss"]
    print(f"  step {score['step']:<8}{score['eval/bits_per_byte']:.3f}   ({loss:.3f} nats per token)")
for name, rate in json.loads(card)["heldout_bits_per_byte"].items():
    print(f"  {name:<13}{rate:.3f}")
PYTHON

run jaxtrain.generate --workdir=$dir/pretrain --prompt="def " --num_tokens=100

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
