"""`serve-eval power`: what the classic test can see with how many samples."""

from __future__ import annotations

import typer


def power(
    sigma: float = typer.Option(50.0, help="Standard deviation of a sample's score, in points."),
    alpha: float = typer.Option(0.05, help="Probability of failing an unchanged endpoint."),
    beta: float = typer.Option(0.2, help="Probability of passing an endpoint that is theta points worse."),
    total: int = typer.Option(..., help="Samples that the data set has."),
) -> None:
    """Print the minimum detectable effect and the threshold by number of samples."""
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError
    from serve_eval.stats.classic import power_table

    if total < 1:
        raise PlanError(f"--total must be 1 or more, not {total}")
    emit(f"{'n':>8}  {'theta':>12}  {'threshold - reference':>22}\n")
    for n, test in power_table(total, sigma, alpha, beta):
        emit(f"{n:>8}  {test.theta:>12.6f}  {test.threshold:>22.6f}\n")
