"""Builds every driver whose toolchain is here, before the tests begin: `python -m conformance.build`, in `tests`.

Compilers use every core for a minute, and tests that run beside them would have to wait for longer than they allow. The
tests that follow find the builds done if both are told the same CONFORMANCE_RUN. A build that fails fails the tests of
its language and not this.
"""

import sys
import time

from conformance.languages import LANGUAGES, build_once, missing, run_id


def main() -> None:
    """Tells what was built, and how long that took."""
    for name, language in LANGUAGES.items():
        begun = time.monotonic()
        told = missing(language) or build_once(language, run_id())
        if told:
            sys.stdout.write(f"{name}: {told}\n")
        elif language.build:
            sys.stdout.write(f"{name}: built in {time.monotonic() - begun:.0f} s\n")


if __name__ == "__main__":
    main()
