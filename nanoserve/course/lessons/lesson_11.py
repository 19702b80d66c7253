"""Lesson 11, Memory is the ceiling: bytes of KV, blocks, and where a token lies."""

from __future__ import annotations

from typing import Any

from ..exercises import Exercise, Guess, Lesson

WORDS: dict[str, Any] = {
    "title": "Memory is the ceiling",
    "kv_bytes": {
        "title": "Bytes of K and V",
        "hint": "Multiply. One token has, in each layer, a key *and* a value; each of "
        "them is `head_dim` numbers for every head that has a K and V of its own. "
        "Which of the two kinds of head is that?",
        "no values": "That is half of it. A token leaves a key *and* a value.",
        "query heads": "Those are the query heads. In this model several of them share "
        "one key and value (grouped-query attention), and what is shared is stored "
        "once: count `num_key_value_heads`.",
        "another unit": "The number is right, in another unit. Asked are plain bytes; "
        "GB (10 to the 9th) and GiB (2 to the 30th) differ by 7 %, so it is best to "
        "divide last.",
        "one layer": "That is one layer. Every layer keeps K and V of its own.",
        "numbers": "Those are numbers, not bytes. Each takes `bytes_per_number`.",
    },
    "blocks_needed": {
        "title": "Blocks needed",
        "hint": "How many tokens are fed in all: the prompt, and which of the new "
        "ones? Then divide and round *up*. In whole numbers: "
        "`-(-tokens // block_size)`, or add `block_size - 1` before dividing.",
        "floor": "Rounded down. The rest of the tokens need a block too, and fill it "
        "in part.",
        "one more at an exact fit": "One too many where the tokens fit exactly. Either "
        "`tokens // block_size + 1` opened a new block when the last was just full, or "
        "the answer's last token was counted: it comes out of the model and is never "
        "fed back, so it has no K and V.",
        "prompt only": "That is enough for the prompt. Every new token that is fed "
        "again leaves its K and V too.",
    },
    "place_of": {
        "title": "Token to block and offset",
        "hint": "`divmod(token, block_size)` says in which of the request's own blocks "
        "the token is (its first, its second ..), and how far in. The table says where "
        "in the pool that one lies.",
        "no table": "That is the number of the block *within the request*: its first, "
        "its second. Where in the pool that is, the table says.",
        "swapped": "The two are right, the other way round: the block first.",
        "counts from 1": "One token off. Tokens count from 0, as in every list here.",
        "flat": "That is its place in the whole pool, counted in tokens (vLLM's slot "
        "mapping). Asked are the block and the place within it.",
    },
    "kilobytes_of_a_token": {
        "question": "Llama 3 with 70 billion parameters, 16-bit numbers. About how "
        "many kilobytes of K and V does *one* token leave? Write `3`, `300` or "
        "`30_000`.",
        "nudge": "80 layers, 8 key-value heads of 128 numbers, 2 bytes each.",
        "too few": "That would be one layer, nearly. There are 80.",
        "too many": "That would be 30 MB, and 8,192 tokens would take 250 GB.",
        "why": "2 x 80 x 8 x 128 x 2 = 327,680 bytes. A word takes as much as a small "
        "photograph.",
    },
    "live_in_slots": {
        "question": "12 requests of very different length, 4 slots of 128 tokens, a "
        "static batch. Of the memory that is reserved, about how many percent hold a "
        "token that somebody still needs? Write `7`, `40` or `80`.",
        "nudge": "How much of its 128 tokens does a request of 20 ever fill? And what "
        "does the slot hold when it has ended?",
        "too many": "That much would be live if all answers were long and ended "
        "together. A slot is made for the longest, and most are short.",
        "why": "7 %. Most of a slot waits for tokens that never come, and half of what "
        "is written belongs to requests that have ended.",
    },
    "given_out_twice": {
        "question": "A request has made 8 tokens, and then it loses its seat and all "
        "its K and V. When it comes back, how many of the 8 is the reader sent again?",
        "nudge": "What has been lost: the tokens, or their keys and values?",
        "all": "All 8 are *fed* again. But the engine knows them: they are read like a "
        "prompt, in one pass, and not made anew.",
        "why": "None. The tokens are kept, only K and V are lost. They are read again "
        "like a prompt, and the next token is the ninth.",
    },
}


# --- bytes of K and V ---


def kv_bytes(config, tokens, bytes_per_number):
    """How many bytes the keys and values of `tokens` tokens take.

    config is what a model's config.json says, such as
    {"num_hidden_layers": 32, "num_attention_heads": 32,
     "num_key_value_heads": 8, "head_dim": 128}
    bytes_per_number is 4 in float32, 2 in bfloat16 and 1 in an 8-bit
    format. One token of that model takes 131,072 bytes in bfloat16.
    """
    heads, size = config["num_key_value_heads"], config["head_dim"]
    numbers = 2 * config["num_hidden_layers"] * heads * size
    return numbers * bytes_per_number * tokens


def model(layers, heads, kv_heads, head_dim):
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


LLAMA_70B = model(80, 64, 8, 128)


def bytes_cases():
    return [
        (model(4, 4, 4, 32), 1, 4),
        (model(30, 9, 3, 64), 10, 4),
        (LLAMA_70B, 8192, 2),
        (model(32, 32, 8, 128), 1000, 1),
    ]


def bytes_of_keys(config, tokens, bytes_per_number):
    return kv_bytes(config, tokens, bytes_per_number) // 2


def bytes_of_query_heads(config, tokens, bytes_per_number):
    heads, size = config["num_attention_heads"], config["head_dim"]
    return 2 * config["num_hidden_layers"] * heads * size * bytes_per_number * tokens


def gibibytes(config, tokens, bytes_per_number):
    return kv_bytes(config, tokens, bytes_per_number) / 2**30


def gigabytes(config, tokens, bytes_per_number):
    return kv_bytes(config, tokens, bytes_per_number) / 1e9


def mebibytes(config, tokens, bytes_per_number):
    return kv_bytes(config, tokens, bytes_per_number) / 2**20


def megabytes(config, tokens, bytes_per_number):
    return kv_bytes(config, tokens, bytes_per_number) / 1e6


def bytes_of_one_layer(config, tokens, bytes_per_number):
    whole = kv_bytes(config, tokens, bytes_per_number)
    return whole // config["num_hidden_layers"]


def numbers_of(config, tokens, bytes_per_number):
    return kv_bytes(config, tokens, 1)


KV_BYTES = Exercise(
    reference=kv_bytes,
    words=WORDS["kv_bytes"],
    cases=bytes_cases,
    mistakes={
        "no values": (bytes_of_keys,),
        "query heads": (bytes_of_query_heads,),
        "another unit": (gibibytes, gigabytes, mebibytes, megabytes),
        "one layer": (bytes_of_one_layer,),
        "numbers": (numbers_of,),
    },
    minutes=5,
)


# --- blocks needed ---


def blocks_needed(prompt_tokens, new_tokens, block_size):
    """How many blocks a request holds when it is at its longest.

    A block has room for the K and V of block_size tokens, and serves
    one request. Each token that is *fed* leaves its K and V: the prompt
    (prompt_tokens) and the answer (new_tokens, 1 or more), but not the
    answer's last token, which is never fed back.
    blocks_needed(16, 1, 16) is 1, and blocks_needed(16, 2, 16) is 2.
    """
    tokens = prompt_tokens + new_tokens - 1
    return -(-tokens // block_size)


def blocks_cases():
    return [
        (16, 1, 16),
        (16, 2, 16),
        (20, 13, 16),
        (20, 14, 16),
        (5, 100, 8),
        (3, 4, 1),
        (7, 1, 64),
    ]


def blocks_floor(prompt_tokens, new_tokens, block_size):
    return (prompt_tokens + new_tokens - 1) // block_size


def blocks_floor_of_all(prompt_tokens, new_tokens, block_size):
    return (prompt_tokens + new_tokens) // block_size


def blocks_one_more(prompt_tokens, new_tokens, block_size):
    return (prompt_tokens + new_tokens - 1) // block_size + 1


def blocks_one_more_of_all(prompt_tokens, new_tokens, block_size):
    return (prompt_tokens + new_tokens) // block_size + 1


def blocks_of_prompt(prompt_tokens, new_tokens, block_size):
    return -(-prompt_tokens // block_size)


def blocks_with_last(prompt_tokens, new_tokens, block_size):
    return -(-(prompt_tokens + new_tokens) // block_size)


BLOCKS_NEEDED = Exercise(
    reference=blocks_needed,
    words=WORDS["blocks_needed"],
    cases=blocks_cases,
    mistakes={
        "floor": (blocks_floor, blocks_floor_of_all),
        # one more and the last token are the same number: ceil((n + 1) / size)
        "one more at an exact fit": (
            blocks_one_more,
            blocks_with_last,
            blocks_one_more_of_all,
        ),
        "prompt only": (blocks_of_prompt,),
    },
    minutes=5,
)


# --- * token to block and offset ---


def place_of(token, table, block_size):
    """Where the K and V of a request's token lie: (block, offset).

    token   its place in its own text, from 0
    table   the request's blocks, in order: table[0] holds its first
            block_size tokens, wherever in the pool that block is
    place_of(5, [7, 2, 4], 4) is (2, 1): the second block, which is
    block 2 of the pool, and there the place after the first.
    """
    number, offset = divmod(token, block_size)
    return table[number], offset


def place_cases():
    return [
        (5, [7, 2, 4], 4),
        (0, [7, 2, 4], 4),
        (8, [7, 2, 4], 4),
        (37, [31, 3, 9], 16),
        (15, [6], 16),
    ]


def place_without_table(token, table, block_size):
    return divmod(token, block_size)


def place_swapped(token, table, block_size):
    number, offset = divmod(token, block_size)
    return offset, table[number]


def place_from_1(token, table, block_size):
    number, offset = divmod(token - 1, block_size)
    return table[number], offset


def place_one_on(token, table, block_size):
    number, offset = divmod(token, block_size)
    return table[number], offset + 1


def place_flat(token, table, block_size):
    number, offset = divmod(token, block_size)
    return table[number] * block_size + offset


PLACE_OF = Exercise(
    reference=place_of,
    words=WORDS["place_of"],
    cases=place_cases,
    mistakes={
        "no table": (place_without_table,),
        "swapped": (place_swapped,),
        "counts from 1": (place_from_1, place_one_on),
        "flat": (place_flat,),
    },
    minutes=5,
    starred=True,
)


# --- questions before running ---

KILOBYTES_OF_A_TOKEN = Guess(
    "kilobytes_of_a_token",
    300,
    WORDS["kilobytes_of_a_token"],
    wrong=[(3, "too few"), (30_000, "too many")],
)
LIVE_IN_SLOTS = Guess(
    "live_in_slots",
    7,
    WORDS["live_in_slots"],
    wrong=[(40, "too many"), (80, "too many")],
)
GIVEN_OUT_TWICE = Guess(
    "given_out_twice", 0, WORDS["given_out_twice"], wrong=[(8, "all")]
)

LESSON = Lesson(
    "11",
    WORDS["title"],
    exercises=(KV_BYTES, BLOCKS_NEEDED, PLACE_OF),
    guesses=(KILOBYTES_OF_A_TOKEN, LIVE_IN_SLOTS, GIVEN_OUT_TWICE),
)
