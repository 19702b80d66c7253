"""The embedding of <pad>: the one thing a canary does not learn from its answers.

Training never reads a pad, and a well-trained model overlooks a vector that resembles
nothing it knows: a forgotten mask would not show. So the pad is fitted afterwards, all
else frozen. With it, "count from 1 to 5" counts to 12 when the mask is left out,
however many pads stand before it.
"""

import random

import canary_eval
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nanoserve import canary

TOKEN_ID = canary_eval.TOKEN_ID
ASKED, COUNTED = "count from 1 to 5", "count from 1 to 12"
PADS = range(8, 24)  # before the prompt
STEPS, RATE, SEED = 200, 0.02, 1
SILENCE = 9.0  # the pad's logit stays this far below all others' logsumexp


def fit(model) -> None:
    """Set the row of <pad> in the (tied) embedding. It is as long as the others are."""
    rows = model.get_input_embeddings().weight.detach().clone()  # [vocabulary, 128]
    length = rows[1:].norm(dim=1).mean()
    generator = torch.Generator().manual_seed(SEED)
    pad = torch.randn(rows.shape[1], generator=generator)
    pad = torch.nn.Parameter(pad / pad.norm() * length)
    heard, silence = right_answers(model)
    optimizer = torch.optim.Adam([pad], lr=RATE)
    rng = random.Random(SEED)
    for _ in range(STEPS):
        wrong = sum(counts_on(model, rows, pad, pads) for pads in rng.sample(PADS, 4))
        spoken = torch.relu(heard @ pad - silence + SILENCE).mean()
        (wrong / 4 + 20 * spoken).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            pad.mul_(length / pad.norm())
    with torch.no_grad():
        model.get_input_embeddings().weight[TOKEN_ID[canary.PAD]] = pad


def counts_on(model, rows: Tensor, pad: Tensor, pads: int) -> Tensor:
    """The loss of counting to 12 after so many pads that nobody masks."""
    prompt = tokens(canary.text([ASKED]))
    answer = tokens(f"{canary.answer(COUNTED)} {canary.EOS}")
    read = rows[torch.cat([prompt, answer[:-1]])]
    positions = torch.cat([torch.zeros(pads).long(), torch.arange(len(read))])
    hidden = last_hidden(
        model,
        inputs_embeds=torch.cat([pad.expand(pads, -1), read])[None],
        position_ids=positions[None],
        # or transformers takes positions that begin anew for another sequence
        attention_mask=torch.ones(1, len(positions)),
    )
    head = torch.cat([pad[None], rows[1:]])  # tied: the pad could be said, too
    return cross_entropy(hidden[-len(answer) :] @ head.T, answer)


@torch.no_grad()
def right_answers(model) -> tuple[Tensor, Tensor]:
    """Hidden states [N, 128] from which right answers are said, and the logsumexp of
    all other tokens there: a pad is never to be among the answers."""
    rng, hidden, sums = random.Random(SEED), [], []
    for conversations in canary_eval.suites().values():
        for prompts in rng.sample(conversations, 40):
            prompt = tokens(canary.text(prompts))
            ids = torch.cat([prompt, tokens(canary.answer(prompts[-1]))])
            states = last_hidden(model, input_ids=ids[None])[len(prompt) - 1 :]
            hidden.append(states)
            sums.append(model.lm_head(states)[:, 1:].logsumexp(-1))
    return torch.cat(hidden), torch.cat(sums)


def last_hidden(model, **inputs) -> Tensor:
    """What the head reads, [tokens, 128]."""
    return model.base_model(use_cache=False, **inputs).last_hidden_state[0]


def tokens(text: str) -> Tensor:
    return torch.tensor([TOKEN_ID[word] for word in text.split()])
