"""Run `serve-eval` as `python -m serve_eval`."""

from serve_eval.cli import main

if __name__ == "__main__":
    main()
