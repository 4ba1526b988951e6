"""Errors in the words of the command line: `steps=0: give …` becomes `--steps 0: give …`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_VALUE = rf"torch\.\w+|'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|{_NUMBER}|\w+|…"
_PHRASES = {
    "pass config=ConvertConfig(inputs=Box(lo, hi, shape=(d,))) or calibration=[…], or exclude it with filter_fn": (
        "attnc.convert_ in Python takes their range; --only TEXT leaves other blocks out"
    ),
    "Use attnc.function(callable) for a function of your own": "For a function of your own give module:function",
    "call with strict=False": "leave out --radius",
    ", an attnc.Function ψ, or an attnc.incontext.Loss": "",
    "samples={'input_ids': ids}": "in Python, attnc.convert_(model, 1e-4, samples={'input_ids': ids})",
}


_options: ContextVar[Mapping[str, str] | None] = ContextVar("attnc_options", default=None)


def note_options(commands: Iterable[Any]) -> None:
    """Remember the options of the commands that may run now, by the names of their arguments in Python."""
    params = [param for command in commands for param in command.params]
    _options.set({p.name: p.opts[-1] for p in params if p.name and p.opts[-1].startswith("--")})


def in_options(message: str, options: Mapping[str, str] | None = None) -> str:
    """The message with `name=value` as `--name value` for the options of the command that runs, or for those that are given.
    What stands in the parentheses of a call is Python and stays.

    >>> in_options("eps=1e-12 cannot be met: use dtype=torch.float64, or f(eps=1)", {"eps": "--eps", "dtype": "--dtype"})
    '--eps 1e-12 cannot be met: use --dtype float64, or f(eps=1)'
    """
    options = options or _options.get()
    if not options:
        return message
    for phrase, instead in _PHRASES.items():
        message = message.replace(phrase, instead)
    names = "|".join(map(re.escape, options))
    message = re.sub(rf"(?<![\w.-])({names}) >= ", lambda found: f"{options[found[1]]} of at least ", message)
    calls = _calls(message)

    def replaced(found: re.Match[str]) -> str:
        if calls[found.start()]:
            return found.group()
        verb, name, value = found.group("verb") or "", found["name"], found["value"]
        if value == "None":
            return f"leave out {options[name]}" if verb else f"no {options[name]}"
        return verb + _option(options[name], value)

    return re.sub(
        rf"(?P<verb>\b(?:use|give|pass) )?(?<![\w.-])(?P<name>{names})=(?P<value>{_VALUE})", replaced, message
    )


def _option(option: str, value: str) -> str:
    if value in ("True", "False"):
        return option if value == "True" else option.replace("--", "--no-", 1)
    plain = value.removeprefix("torch.")
    if plain.startswith("("):
        plain = plain.strip("()").replace(",", "")
    if plain.startswith("["):
        plain = re.sub(r"['\s]", "", plain.strip("[]"))
    if plain[:1] in "'\"" and " " not in plain:
        plain = plain[1:-1]
    return f"{option} {plain}"


def _calls(message: str) -> list[bool]:
    """For each character, whether it stands in the parentheses of a call."""
    open_calls, inside = list[bool](), list[bool]()
    for i, letter in enumerate(message):
        if letter == "(":
            open_calls.append(i > 0 and (message[i - 1].isalnum() or message[i - 1] == "_"))
        inside.append(any(open_calls))
        if letter == ")" and open_calls:
            open_calls.pop()
    return inside
