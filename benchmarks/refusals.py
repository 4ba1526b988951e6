"""How long attnc takes to say no: every function, dtype and interval with errors that cannot be met, and the slowest answers.

    python benchmarks/refusals.py                  # all functions: about half an hour on one core
    python benchmarks/refusals.py --only relu abs sin --eps 1e-60 1e-300

Each case runs in a process of its own, with a limit; seconds are those of the processor, without the start of Python."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from multiprocessing.connection import Connection

EPS = (1e-3, 1e-12, 1e-60, 1e-300)
REACHES = (8.0, 1e5)
LIMIT = 120.0
PARAMETERS = {"clip": "clip(-25,25)"}


def ask(sender: Connection, kind: str, name: str, reach: float, eps: float, dtype: str) -> None:
    """One case: what came of it, in words, and the seconds it took."""
    import torch

    import attnc
    from attnc.domain import Interval
    from attnc.heads.target import Plan
    from attnc.lower.function_to_head import head_approximating

    torch.set_num_threads(1)
    attnc.head("tanh", domain=(-1, 1), eps=0.1)  # what is done once in a process
    f, began = attnc.functions.get(name), time.process_time()
    try:
        if kind == "head":
            attnc.head(f, domain=(-reach, reach), eps=eps, dtype=getattr(torch, dtype))
        else:
            head_approximating(Plan(f, Interval(-reach, reach), dtype), eps)
        answer = "met"
    except attnc.AttncError as problem:
        reachable = getattr(problem, "reachable", None)
        answer = f"{type(problem).__name__}" + ("" if reachable is None else f", {reachable:.1e} can be met")
        answer += ", stopped for time" if "was stopped after" in str(problem) else ""
    sender.send((answer, time.process_time() - began))


def timed(case: tuple[str, str, float, float, str]) -> tuple[str, float]:
    """The answer and its seconds; none within the limit is an answer too."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=ask, args=(sender, *case))
    process.start()
    try:
        if receiver.poll(LIMIT):
            answer, seconds = receiver.recv()
            return str(answer), float(seconds)
        return "no answer", LIMIT
    except EOFError:
        return "crashed", LIMIT
    finally:
        process.terminate()
        process.join()


def main() -> None:
    import attnc

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(attnc.functions.names()), help="functions")
    parser.add_argument("--eps", nargs="*", type=float, default=list(EPS))
    parser.add_argument(
        "--reach", nargs="*", type=float, default=list(REACHES), help="R of the interval [-R, R]"
    )
    parser.add_argument("--dtype", nargs="*", default=["float32", "float64"])
    parser.add_argument(
        "--kind", nargs="*", default=["head", "activation"], help="attnc.head, or a head for convert_"
    )
    given = parser.parse_args()
    names = [PARAMETERS.get(name, name) for name in given.only]
    worst: dict[str, tuple[float, str]] = {}
    for case in itertools.product(given.kind, names, given.reach, given.eps, given.dtype):
        kind, name, reach, eps, dtype = case
        answer, seconds = timed(case)
        line = f"{kind:10} {name:15} [-{reach:g}, {reach:g}] eps={eps:g} {dtype}: {seconds:6.1f} s  {answer}"
        print(line, flush=True)
        outcome = "met" if answer == "met" else "refused"
        worst[outcome] = max(worst.get(outcome, (0.0, "")), (seconds, line))
    for outcome, (seconds, line) in worst.items():
        print(f"slowest that was {outcome}: {seconds:.1f} s\n  {line}")


if __name__ == "__main__":
    main()
