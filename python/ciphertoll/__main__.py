"""`python -m ciphertoll` is `ciphertoll`."""

from ciphertoll.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
