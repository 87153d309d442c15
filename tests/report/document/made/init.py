"""Documents of plans that were written, for an endpoint and from a recipe."""

from pathlib import Path

from serve_eval.schema import STAND_IN, Ability, Need
from serve_eval.workflows.init import EndpointFacts, RecipePlan, make_document, make_recipe_document

URL = "http://host:8000/v1"


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where an endpoint or a recipe wrote it."""
    abilities = tuple(
        Ability(need=need, works=works, seen=text)
        for need, works in zip(Need, (True, False, None, True), strict=False)
    )
    facts = EndpointFacts(models=(text, "b"), server=text, version=text, abilities=abilities)
    rehearsed = EndpointFacts(version=f"1.2 {STAND_IN}", context_tokens=9, abilities=abilities)
    lost = EndpointFacts(problem=text)
    file = Path("my plan.yaml")
    comments = [f"From {text}.", "Fill in or check:", *[f"* {text}"] * 9]
    comments += ["The plan leaves out:", *[f"* {text} {i}" for i in range(9)], text]
    plan = RecipePlan(file=file, comments=comments, needs="the servers need 2 nodes")
    refused = RecipePlan(file=Path("b.yaml"), comments=comments, refused=text)
    return {
        "WRITTEN": make_document(facts, URL, None, file),
        "stand-in": make_document(rehearsed, URL, "m", file),
        "to fill in": make_document(lost, URL, None, file),
        "recipe": make_recipe_document(Path("recipe.yaml"), [plan]),
        "variants": make_recipe_document(Path("recipe.yaml"), [plan, refused]),
    }
