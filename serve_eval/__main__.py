"""`python -m serve_eval` is `serve-eval`."""

from serve_eval.cli import main

if __name__ == "__main__":
    main()
