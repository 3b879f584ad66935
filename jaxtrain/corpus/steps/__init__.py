"""One file, one verb: each module holds a `Config`, `make`, and where it learns first, `fit`.

`corpus/step.py` says what a step is; a module put into this folder can be named in `config.steps`.
"""
