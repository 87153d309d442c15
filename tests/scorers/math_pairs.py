"""Answers and formulas that are equal, or are not, by the library math-verify."""

PAIRS = [
    ("So it is $\\boxed{0.5}$.", "\\frac{1}{2}", True),
    ("The final answer is $\\frac{2}{4}$.", "1/2", True),
    ("It is 1/3.", "\\frac{1}{2}", False),
    ("$(x-1)(x+1)$", "x^2-1", True),
    ("$(x-1)(x+2)$", "x^2-1", False),
    ("\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", "(3, \\pi/2)", True),
    ("\\boxed{(\\frac{\\pi}{2}, 3)}", "(3, \\frac{\\pi}{2})", False),
    ("so \\boxed{1} but then \\boxed{2}", "2", True),
    ("It is $2\\sqrt{3}$", "\\sqrt{12}", True),
    ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", True),
    ("\\boxed{\\text{(B)}}", "\\text{(C)}", False),
    ("\\boxed{11,\\! 111}", "11111", True),
    ("$\\boxed{x \\in [-2, 7]}$", "[-2, 7]", True),
    ("\\boxed{[-2, 7)}", "[-2, 7]", False),
    ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}", True),
    (
        "\\boxed{\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}}",
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        True,
    ),
    ("So he pays \\boxed{\\$18.90}.", "\\$18.90", True),
    ("\\boxed{6 - 5i}", "6-5i", True),
    ("\\boxed{90^\\circ}", "90", True),
    ("I do not know.", "0", False),
]
"""An answer, the expected formula, and whether they are equal."""
