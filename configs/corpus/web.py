"""Web pages to prose: FineWeb's order of steps (Penedo et al. 2024) with the published numbers.

    python -m jaxtrain.prepare --config=configs/corpus/web.py --workdir=runs/web \\
        --config.inputs=web=/data/web/*.jsonl.gz
    python -m jaxtrain.prepare --config=configs/corpus/web.py:warc …       pages as crawled (WARC)

Language (any, at a probability of 0.65 or more), repetition and quality as in Gopher, lines and
sentences as in C4, lines as in FineWeb, exact and near duplicates over all of the input,
personal data masked. web.py:decontaminate (or web.py:warc,decontaminate) takes out what stands in
benchmarks before the masking:
--config.decontaminate.benchmarks='("gsm8k=gsm8k.jsonl:question,answer",)'
"""

from jaxtrain import config
from jaxtrain.corpus.config import CorpusConfig


def get_config(arg=""):
    parts = set(filter(None, arg.split(",")))
    if unknown := parts - {"warc", "decontaminate"}:
        raise ValueError(f"web.py:{arg}: {min(unknown)} is none of warc, decontaminate")
    c = config.to_config_dict(CorpusConfig)
    c.steps = (
        *(("extract_html",) if "warc" in parts else ()),
        "normalize",
        "detect_language",
        "gopher_repetition",
        "gopher_quality",
        "c4",
        "fineweb",
        "drop_exact_duplicates",
        "drop_near_duplicates",
        *(("decontaminate",) if "decontaminate" in parts else ()),
        "mask_pii",
    )
    c.detect_language.min_score = 0.65
    # FineWeb leaves it off: it alone removes about 30 % of all documents.
    c.c4.drop_unfinished_lines = False
    # Of pages of anybody's hand there is always one that cannot be read; over 1 % stop the run.
    c.reading.malformed = "count"
    return c
