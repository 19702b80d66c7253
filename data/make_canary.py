"""Train the two built-in models from nothing, by seed.

    python data/make_canary.py [canary|canary-rope|all] [--out DIR] [--steps N]

One process a model; with both, they train side by side, on a core each. The later
cycles of `canary` take two cores: `canary-rope` is done by then. A model's files are
put in place at its end, all at once, so stopping early changes nothing.
On two cores it takes about 45 minutes (`canary-rope` alone 22).
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from torch.nn.functional import cross_entropy
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # works before nanoserve is installed

import canary_files  # noqa: E402

from nanoserve import canary  # noqa: E402

NAMES = ("canary", "canary-rope")
SEED = 1
IGNORED = -100  # cross_entropy's label for "no loss here"
LEFT = 128  # what the second head tells apart: 0 to 126 tokens to come, or more
TOKEN_ID = canary_files.TOKEN_ID


class Cycle(NamedTuple):
    """One rise and fall of the learning rate.

    An easy cycle starts with rows of 40 tokens, from which copying is learned; a hard
    one has all lengths at once, and letters that come again and again. Once the tasks
    are understood, half a batch teaches nearly as much as a whole one.
    """

    steps: int
    rate: float  # at its highest
    weights: tuple[int, ...]  # how often to count, repeat, copy and reverse
    easy: bool
    alone: float = 0.66  # the share of prompts with no earlier exchange before them
    repeats: float = 0.0  # the share of repeats after an exchange, beside the others
    far: float = 0.0  # the share of counts beyond 120, which others seldom are
    left: float = 0.0  # how much the second head's loss counts
    batch: int = 1600  # tokens in a batch, or a row more
    cores: int = 1


HALF = {"batch": 800, "cores": 2}
CYCLES = {  # each leans on what the one before leaves weak
    "canary": (
        Cycle(5000, 3e-3, (5, 7, 8, 6), easy=True),
        Cycle(5000, 2e-3, (4, 9, 7, 7), easy=False),
        Cycle(5000, 2.5e-3, (2, 14, 8, 3), False, alone=0.1, left=0.3, **HALF),
        Cycle(
            11000,
            2e-3,
            (4, 4, 14, 5),
            False,
            alone=0.25,
            repeats=0.4,
            left=0.05,
            **HALF,
        ),
        Cycle(
            2000, 7e-4, (5, 6, 12, 5), False, alone=0.4, repeats=0.3, far=0.08, cores=2
        ),
    ),
    "canary-rope": (
        Cycle(5000, 3e-3, (6, 5, 8, 6), easy=True),
        Cycle(5000, 2e-3, (4, 6, 9, 9), easy=False),
    ),
}


# ---- models ----------------------------------------------------------------------


def make_model(name: str) -> transformers.PreTrainedModel:
    """Return an untrained model: 4 layers of width 128, 4 heads, tied embeddings.

    The config has no pad_token_id: Llama would make it `padding_idx`, whose embedding
    is zero, and zero pads would hide bugs. The tokenizer knows the pad.
    """
    common = {
        "vocab_size": len(canary.VOCABULARY),
        "bos_token_id": TOKEN_ID[canary.BOS],
        "eos_token_id": TOKEN_ID[canary.EOS],
        "tie_word_embeddings": True,
    }
    return _gpt2(common) if name == "canary" else _llama(common)


def _llama(common: dict) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=canary.MAX_LENGTH,
        **common,
    )
    return transformers.LlamaForCausalLM(config)


def _gpt2(common: dict) -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        # One fused operation, a quarter off the time; gelu_new is the same function.
        activation_function="gelu_pytorch_tanh",
        n_positions=canary.MAX_LENGTH,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **common,
    )
    model = transformers.GPT2LMHeadModel(config)
    start_as_waves(model.transformer.wte.weight, model.transformer.wpe.weight)
    return model


@torch.no_grad()
def start_as_waves(tokens: torch.Tensor, positions: torch.Tensor) -> None:
    """Start positions and numbers as sines and cosines, in different dimensions.

    All of it is learned from there. From independent noise, "one place to the left"
    has to be found out for each position by itself, and "N places after the prompt"
    for each position and number: copying then comes late, and repeating never.
    """
    frequencies = 3.0 * (1 / 300) ** (torch.arange(32) / 31)
    angles = torch.arange(canary.MAX_LENGTH)[:, None] * frequencies  # [640, 32]
    waves = 0.25 * torch.cat([angles.sin(), angles.cos()], 1)  # [640, 64]
    positions.zero_()
    positions[:, :64] = waves
    tokens.normal_(0, 0.1)
    numbers = tokens[TOKEN_ID["0"] :]
    numbers *= 0.3
    numbers[:, 64:] += waves[: len(numbers)]


# ---- training data ---------------------------------------------------------------


def example(prompts: list[str]) -> list[tuple[int, int]]:
    """Write a conversation as (token id, label) pairs; only answers have labels."""
    words = f"{canary.text(prompts)} {canary.answer(prompts[-1])} {canary.EOS}".split()
    pairs, answering = [], False
    for word in words:
        pairs.append((TOKEN_ID[word], TOKEN_ID[word] if answering else IGNORED))
        answering = word == canary.ANSWER or (answering and word != canary.EOS)
    return pairs


def conversation(rng: random.Random, cycle: Cycle) -> list[str]:
    """Draw the prompts of a conversation.

    Many come after an earlier exchange, one in twenty after two, so that <eos> inside a
    prompt is nothing strange.
    """
    if cycle.far and rng.random() < cycle.far:
        # few lengths, so that their batches fill
        items, first = rng.randrange(139, canary.LARGEST + 1, 20), rng.choice((0, 1))
        return [f"count from {first} to {first + items - 1}"]
    if cycle.repeats and rng.random() < cycle.repeats:
        times = rng.randint(1, canary.MAX_REPEATS)
        last = f"repeat {rng.choice(canary.LETTERS)} {times} times"
        return [canary.short_prompt(rng), last]
    chance = rng.random()
    earlier = 0 if chance < cycle.alone else 1 if chance < 0.95 else 2
    prompts = [canary.short_prompt(rng) for _ in range(earlier)]
    return [*prompts, canary.random_prompt(rng, cycle.weights, not cycle.easy)]


def next_batch(rng: random.Random, cycle: Cycle, buckets: defaultdict, longest: float):
    """Return ids and labels [B, S], rows equally long: training sees no padding.

    Examples wait in a bucket per length until they fill a batch, so short and long
    ones come as often as they are drawn.
    """
    while True:
        pairs = example(conversation(rng, cycle))
        length = len(pairs)
        if length > longest:
            continue
        bucket = buckets[length]
        bucket.append(pairs)
        # of the shortest rows 128 are enough, or 64 in half a batch
        if len(bucket) * max(length, 12.5) >= cycle.batch:
            return torch.tensor(buckets.pop(length)).unbind(-1)


# ---- training --------------------------------------------------------------------


class Learner(torch.nn.Module):
    """A model with a second head for training alone: how many tokens are still to come.

    A repeat is right or wrong at one token, its `<eos>`; the hundred before it teach
    little. Asked at each of them how many are left, the model works out the end of its
    answer all along the row: 3,000 steps teach as much as 7,000 without. (An auxiliary
    task, as in Caruana, "Multitask Learning", 1997.)
    """

    def __init__(self, model: transformers.PreTrainedModel):
        super().__init__()
        self.model = model
        self.left_head = torch.nn.Linear(model.config.hidden_size, LEFT)

    def loss(self, ids: torch.Tensor, labels: torch.Tensor, left: float):
        """Return the mean over the answers' tokens; ids and labels are [B, S]."""
        output = self.model(ids, use_cache=False, output_hidden_states=True)
        loss = answer_loss(output.logits, labels)
        if left:
            hidden = output.hidden_states[-1]  # [B, S, width], after the last norm
            loss += left * answer_loss(self.left_head(hidden), tokens_left(labels))
        return loss


def answer_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compare each column's logits [B, S, classes] with the next column's label."""
    return cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


def tokens_left(labels: torch.Tensor) -> torch.Tensor:
    """Replace each answer's labels [B, S] by how many of its tokens come after."""
    columns = torch.arange(labels.shape[1])
    ends = torch.where(labels == TOKEN_ID[canary.EOS], columns, canary.MAX_LENGTH)
    ends = ends.flip(1).cummin(1).values.flip(1)  # the next <eos> from here
    left = (ends - columns).clamp(max=LEFT - 1)
    return torch.where(labels == IGNORED, IGNORED, left)


def train(learner: Learner, cycle: Cycle, seed: int, bar: tqdm) -> None:
    # threads that find no core of their own wait for each other, and cost more
    torch.set_num_threads(min(cycle.cores, os.cpu_count() or 1))
    rng, buckets = random.Random(seed), defaultdict(list)
    longest = 40.0 if cycle.easy else canary.MAX_LENGTH
    optimizer = make_optimizer(learner, cycle.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, cycle.rate, total_steps=cycle.steps, pct_start=0.1
    )
    for step in range(cycle.steps):
        ids, labels = next_batch(rng, cycle, buckets, longest)
        if cycle.easy:
            longest = min(canary.MAX_LENGTH, 40 + 1200 * step / cycle.steps)
        loss = learner.loss(ids, labels, cycle.left)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
        bar.update()


def make_optimizer(learner: Learner, rate: float) -> torch.optim.AdamW:
    """Weight decay on the layers' matrices only: it must not shrink embeddings."""
    embeddings = [m for m in learner.modules() if isinstance(m, torch.nn.Embedding)]
    kept = {id(embedding.weight) for embedding in embeddings}
    decayed, plain = [], []
    for weight in learner.parameters():
        matrix = weight.ndim == 2 and id(weight) not in kept
        (decayed if matrix else plain).append(weight)
    groups = [
        {"params": decayed, "weight_decay": 0.01},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))


# ---- command line ----------------------------------------------------------------


def make(name: str, out: Path, steps: int | None, place: int) -> None:
    """Train, measure and save one model under out/name."""
    torch.manual_seed(SEED)
    learner = Learner(make_model(name))
    planned = sum(cycle.steps for cycle in CYCLES[name])
    share = (steps or planned) / planned
    cycles = [c._replace(steps=max(20, round(c.steps * share))) for c in CYCLES[name]]
    started = time.process_time()
    total = sum(cycle.steps for cycle in cycles)
    with tqdm(total=total, desc=name, position=place, unit="step") as bar:
        for number, cycle in enumerate(cycles):
            train(learner, cycle, SEED + number, bar)
    minutes = (time.process_time() - started) / 60
    told = "{0.steps:,} steps of {0.batch:,} tokens to a rate of {0.rate}"
    story = ", then ".join(map(told.format, cycles))
    training = f"{story}; seed {SEED}; {minutes:.0f} minutes"
    canary_files.save(name, learner.model.eval(), out, training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="all", choices=[*NAMES, "all"])
    parser.add_argument("--out", type=Path, default=HERE, help="default: data/")
    parser.add_argument("--steps", type=int, help="fewer steps, for a quick try")
    options = parser.parse_args()
    names = NAMES if options.name == "all" else (options.name,)
    start = multiprocessing.get_context("spawn").Process
    workers = [
        start(
            target=_quietly,
            args=(name, options.out, options.steps, place),
            daemon=True,  # none trains on when this process has ended
        )
        for place, name in enumerate(names)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:  # Ctrl-C reaches the workers as well
        for worker in workers:
            worker.join()
        sys.exit("\nstopped; a model that was not finished was not touched")
    sys.exit(any(worker.exitcode for worker in workers))


def _quietly(*arguments) -> None:
    """Run make(); on Ctrl-C end without a traceback from every process."""
    try:
        make(*arguments)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
