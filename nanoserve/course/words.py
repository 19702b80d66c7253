"""What the exercises say, whatever the lesson. A translation replaces this dict.

Backticks mark code. Names in braces are filled in.
"""

WORDS = {
    # --- the verdict's first line ---
    "passed": "right in all {cases} cases",
    "untouched": "not attempted yet",
    "unfinished": "not finished yet",
    "wrong": "not yet",
    "raised": "it raised an error",
    "stopped": "it did not come to an end",
    "arguments": "its arguments are not the ones it is called with",
    "unknown": "no exercise has this name",
    # --- and what follows ---
    "from here on": "From here on, `course.{name}` is yours.",
    "how to attempt": "Replace the `...` and run this cell again. Until then the "
    "course goes on with its own version.",
    "gives nothing": "It gives nothing back (None). Is a `return` missing?",
    "gives nothing but prints": "It prints, and gives nothing back (None). `return` "
    "the answer instead of printing it.",
    "gives nothing but changes": "It changes {arguments} and gives nothing back "
    "(None). `return` the answer too.",
    "still open": "A part of the answer is still `...` or None.",
    "is no answer": "It gave back {what}.",
    "holds no answer": "A part of what it gave back is {what}.",
    "other shape": "Expected is an answer of shape {expected}, yours has shape {got}.",
    "an error": "`{error}`",
    "an error with words": "`{error}`: {message}",
    "its line": "It comes from line {line}",
    "too slow": "It was stopped after {seconds} seconds. Does a loop in it never end?",
    "no end of calls": "It calls itself again and again. What ends that?",
    "changed, a note": "It also changes {arguments}, which belongs to the caller. "
    "That counts as right here; `copy` it first where the old one is still needed.",
    "changed, a fault": "The answer is right, but it changes {arguments}, which "
    "belongs to the caller and must stay as it is.",
    "how it is called": "It is called as `{call}`. Keep the first line as it was.",
    "did you mean": "Did you mean `{name}`?",
    "names": "A check goes by the function's name. Keep the name that the lesson gave "
    "it.",
    "this case": "In this case:",
    "the row": "{row}:",
    "expected": "expected",
    "got": "yours",
    "this row": "this answer",
    "printed": "What it printed",
    "it itself": "course.{name} stands for this exercise itself: write it out here",
    # --- answers that are none ---
    "too large": "a list or tensor of {size:,} values",
    "a huge number": "a number of more than 77 digits",
    "a coroutine": "a coroutine: write `def`, not `async def`",
    "a generator": "a generator: write `return`, not `yield`",
    "an iterator": "an iterator: put `list(...)` around it",
    "a function": "a function: is a `()` missing?",
    "an object": "an object of type `{kind}`",
    # --- the badge ---
    "yours": "yours",
    "ours, not run yet": "the course's, yours was not run yet",
    "ours, untouched": "the course's, yours is not attempted yet",
    "ours, failed": "the course's, yours did not pass its last check",
    "ours, stale": "the course's, yours has changed since its check: run its cell "
    "again",
    # --- guesses ---
    "guess right": "Your guess, `{guess}`, is right.",
    "guess wrong": "Not quite: your guess is `{guess}`.",
    "guess untouched": "No guess yet.",
    "how to guess": "Put your guess in place of the `...` and run this cell again. A "
    "wrong one costs nothing, and you will remember the answer better.",
    "the answer": "The answer is `{answer}`.",
    "show the answer": "Show the answer, and why",
    "guess unknown": "no question has this name",
    # --- progress ---
    "progress": "Your progress",
    "exercise": "exercise",
    "minutes": "{minutes} min",
    "done": "passed",
    "not done": "not yet",
    "sum": "{passed} of {all} passed; a star marks what may be left out",
    "not kept": "This could not be saved here, so it lasts until the kernel ends.",
    # --- cells of a notebook ---
    "exercise title": "### Exercise: {title} ({minutes} min)",
    "starred title": "### ★ Exercise, if you like: {title} ({minutes} min)",
    "question": "**Before you run it:** {question}",
    "hint": "Hint",
    "solution": "Solution",
}
