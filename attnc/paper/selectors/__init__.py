"""Softmax and what is used in its place, on the same anchors: hard attention, sparsemax, entmax, sigmoid, ReLU and linear
attention, and Nyström's landmarks. docs/selectors.md compares them."""

from attnc.paper.selectors.selection import SELECTORS, SHARPNESSES, Selection, Selector, select
from attnc.paper.selectors.theorems import analytic_bound, curvature, least_error
from attnc.paper.selectors.weights import entmax15, hard, linear, nystrom, relu, sigmoid, softmax, sparsemax

__all__ = [
    "SELECTORS", "SHARPNESSES", "Selection", "Selector", "analytic_bound", "curvature", "entmax15", "hard", "least_error",
    "linear", "nystrom", "relu", "select", "sigmoid", "softmax", "sparsemax",
]  # fmt: skip
