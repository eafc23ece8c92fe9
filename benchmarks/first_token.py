"""Start, answer one message, say when the first token came: run by `step.py` in a process of its own."""

import sys

from sojourn import Engine


def main() -> None:
    with Engine(sys.argv[1], threads=2) as engine:
        turn = engine.generate(token_ids=engine.encode("The harbour had two lights"), max_tokens=1, ignore_eos=True)
        next(iter(turn))
        print("first token", flush=True)


if __name__ == "__main__":
    main()
