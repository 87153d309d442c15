"""Run `serve-eval` as `python -m serve_eval`.

Python has already put the current folder on the import path; `main` takes it off again. In a folder
that is not yours, use `serve-eval` or `python -P -m serve_eval`: a folder `serve_eval` there would
be taken for this one.
"""

from serve_eval.cli import main

if __name__ == "__main__":
    main()
