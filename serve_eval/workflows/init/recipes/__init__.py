"""Read the recipes that people have, and write plans for our launchers.

`reading` recognises the form of a file; one module per form turns it into a `DeploymentRecipe`;
`plan_text` writes the plan.
"""

__all__ = ["plan_text", "reading"]
