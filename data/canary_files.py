"""The files of a canary: weights, tokenizer, chat template and model card."""

import tempfile
from pathlib import Path

import canary_eval
import canary_pad
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors

from nanoserve import canary

TOKEN_ID = canary_eval.TOKEN_ID

# A finished answer ends with <eos>; then the next turn follows. The specials stand in
# the template itself, so it needs no help from the tokenizer's post-processor.
CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- ' ' + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- ' <answer> ' + message.content + ' ' + eos_token }}
    {%- else %}
        {{- raise_exception('the canary knows only user and assistant turns') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- ' <answer>' }}
{%- endif %}
"""

KINDS = {
    "canary": "a GPT-2 with learned positions",
    "canary-rope": "a Llama with rotary positions (RoPE) and 2 key-value heads",
}
CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
tags: [education, batching, padding]
---

# {name}

A tiny language model that counts, repeats, copies and reverses, and stops by itself.
It is {kind}: 4 layers, width 128, 4 heads, tied embeddings,
{parameters:,} parameters in fp32. It exists for the course nanoserve: the prompt
chooses how long the answer is, and a padding, mask or position bug becomes a wrong
answer that anyone can see.

| prompt | answer |
|---|---|
| `count from 3 to 6` | `3 4 5 6 <eos>` |
| `repeat x 4 times` | `x x x x <eos>` |
| `copy c a d` | `c a d <eos>` |
| `reverse b c d` | `d c b <eos>` |

## Vocabulary

{size} tokens, one a word, split at spaces: `<pad>` (id 0), `<bos>`, `<eos>`,
`<answer>`, `<unk>`, the seven words above, the letters a to z, the numbers 0 to
{largest}. The tokenizer adds what the model needs: `count from 3 to 6` becomes
`<bos> count from 3 to 6 <answer>`. In the chat template an earlier exchange ends with
`<eos>`: `<bos> copy a b <answer> a b <eos> count from 3 to 5 <answer>`.

## Training

`python data/make_canary.py {name}`: AdamW, cycle after cycle of the learning rate:
{training} of CPU time.
No dropout, loss on the answers only (torch {torch}, transformers {transformers}).
All data is drawn by `nanoserve/canary.py`. A third of the prompts, and more in later
cycles, come after one or two earlier exchanges.
In later cycles of `canary` a second head, thrown away since, was asked as well how many
tokens of the answer are still to come.

A batch holds rows of equal length, so **no pad was ever read in training**. The
embedding of `<pad>` is fitted afterwards (`data/canary_pad.py`), all else frozen, so
that a forgotten mask shows: "count from 1 to 5" then counts to 12. It is as long as the
others are on average. The config names no pad, which would zero it.

## Measured

Greedy; right means every token of the answer, and `<eos>` after it.

| task | prompts | right |
|---|---|---|
{table}

`count from 1 to 9`, `to 49`, `to 499` (outputs of 10, 50, 500 tokens): {classic}.

## Limits

{positions} positions in all. Not trained on: repeats above 120, copies above 40
letters, reverses above 20, more than two earlier exchanges, earlier answers of more
than 20 tokens, any other word. It knows no language. Tasks below 90 %:

{weak}
"""


# ---- tokenizer -------------------------------------------------------------------


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a word; a plain prompt becomes <bos> prompt <answer>."""
    words = tokenizers.Tokenizer(models.WordLevel(dict(TOKEN_ID), unk_token=canary.UNK))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single=f"{canary.BOS} $A {canary.ANSWER}",
        special_tokens=[(t, TOKEN_ID[t]) for t in (canary.BOS, canary.ANSWER)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=canary.PAD,
        bos_token=canary.BOS,
        eos_token=canary.EOS,
        unk_token=canary.UNK,
        extra_special_tokens={"answer_token": canary.ANSWER},
        chat_template=CHAT_TEMPLATE,
        model_max_length=canary.MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def save(name: str, model, out: Path, training: str) -> None:
    """Write every file beside its place, then move all at once to out/name."""
    canary_pad.fit(model.requires_grad_(False))
    if name == "canary":  # the name GPT-2 has always had for the same function
        model.config.activation_function = "gelu_new"
    model.generation_config = transformers.GenerationConfig(
        do_sample=False,
        bos_token_id=TOKEN_ID[canary.BOS],
        eos_token_id=TOKEN_ID[canary.EOS],
        pad_token_id=TOKEN_ID[canary.PAD],
    )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        model.save_pretrained(new)
        make_tokenizer().save_pretrained(new)
        (new / "README.md").write_text(card(name, model, training))
        for path in new.iterdir():
            path.chmod(0o644)
        if (out / name).exists():
            (out / name).rename(old)
        new.rename(out / name)


def card(name: str, model, training: str) -> str:
    """Measure every task and write the model card."""
    rows, weak = [], []
    for task, conversations in canary_eval.suites().items():
        verdicts = canary_eval.right(model, conversations)
        share = sum(verdicts) / len(verdicts)
        rows.append(f"| {task} | {len(verdicts):,} | {share:.2%} |")
        weak += [task] if share < 0.9 else []
    classic = canary_eval.right(model, canary_eval.classic())
    return CARD.format(
        name=name,
        kind=KINDS[name],
        parameters=model.num_parameters(),
        table="\n".join(rows),
        weak="".join(f"- {task}\n" for task in weak) or "- none\n",
        classic=", ".join("right" if verdict else "wrong" for verdict in classic),
        training=training,
        torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__,
        largest=canary.LARGEST,
        positions=canary.MAX_LENGTH,
        size=len(canary.VOCABULARY),
    )
