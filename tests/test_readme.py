"""The picture at the top of the README is what the engine does today.

``python tests/test_readme.py`` draws it anew.
"""

from __future__ import annotations

from pathlib import Path

from nanoserve import Request, SamplingParams, StaticBatchEngine, load, serve

PICTURE = Path(__file__).parents[1] / "docs" / "static_batch.svg"
PROMPTS = (
    "count from 1 to 5",
    "count from 3 to 12",
    "repeat a 3 times",
    "copy q w e r t y",
    "count from 7 to 9",
    "reverse b c d",
)


def drawn() -> str:
    lm = load("canary", device="cpu")
    engine = StaticBatchEngine(lm, max_num_seqs=3, max_model_len=64)
    params = SamplingParams(max_tokens=40)
    serve(engine, [Request(lm.encode(prompt), params) for prompt in PROMPTS])
    return engine.trace.svg()


def test_the_picture_of_the_readme_is_a_real_trace():
    assert PICTURE.read_text("utf-8") == drawn()
    readme = (PICTURE.parents[1] / "README.md").read_text("utf-8")
    assert f"(docs/{PICTURE.name})" in readme


if __name__ == "__main__":
    PICTURE.write_text(drawn(), "utf-8")
