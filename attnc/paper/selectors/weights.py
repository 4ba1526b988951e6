"""From scores to weights, over the last axis: softmax and what is used in its place.

hard        1 for the largest score, 0 for all others
softmax     argmax over the simplex of <w, z> + Σ_k -w_k log w_k
sparsemax   argmax over the simplex of <w, z> - |w|²/2, the point of the simplex that is nearest to z
entmax15    argmax over the simplex of <w, z> + (4/3) Σ_k (w_k - w_k^{3/2}), between the two
sigmoid     1/(1 + exp(-z_k)), relu max(z_k, 0), linear z_k: each key by itself, no normalisation"""

from __future__ import annotations

import torch
from torch import Tensor

from attnc.arguments import checked_count
from attnc.errors import InputError


def hard(z: Tensor) -> Tensor:
    """All weight on the largest score; of equal scores, on the first.

    >>> hard(torch.tensor([0.1, 0.3, 0.3]))
    tensor([0., 1., 0.])
    """
    z = _checked(z)
    return torch.zeros_like(z).scatter(-1, z.argmax(-1, keepdim=True), 1.0)


def softmax(z: Tensor) -> Tensor:
    """exp(z_k)/Σ_j exp(z_j)."""
    return torch.softmax(_checked(z), -1)


def sparsemax(z: Tensor) -> Tensor:
    """w_k = max(z_k - τ, 0), with τ such that the weights add up to 1.

    By the conditions of optimality k has a weight if Σ_j max(z_j - z_k, 0) < 1. So the support is the m largest scores, m the
    largest number with m z_(m) > z_(1) + … + z_(m) - 1, and τ = (z_(1) + … + z_(m) - 1)/m.

    >>> sparsemax(torch.tensor([0.25, 0.0, -1.0]))
    tensor([0.6250, 0.3750, 0.0000])
    """
    z = _shifted(z)
    ordered = z.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    size = (_counts(z) * ordered > excess).sum(-1, keepdim=True).clamp(min=1)  # 0 only for NaN
    return (z - excess.gather(-1, size - 1) / size).clamp(min=0)


def entmax15(z: Tensor) -> Tensor:
    """w_k = max(z_k/2 - τ, 0)², with τ such that the weights add up to 1.

    Let x = z/2, sorted downwards. If the m largest scores are the support, with the mean μ and Σ (x_j - μ)² = S, then τ = μ -
    √((1 - S)/m). The support has the largest m with S <= 1 and τ <= x_(m).

    >>> entmax15(torch.tensor([1.0, 0.0, -2.0])).round(decimals=4)
    tensor([0.8307, 0.1693, 0.0000])
    """
    x = _shifted(z) / 2
    ordered = x.sort(-1, descending=True).values
    count = _counts(x)
    mean = ordered.cumsum(-1) / count
    spread = (ordered**2).cumsum(-1) - count * mean**2
    threshold = mean - ((1 - spread).clamp(min=0) / count).sqrt()
    size = (threshold <= ordered).sum(-1, keepdim=True).clamp(min=1)  # 0 only for NaN
    return (x - threshold.gather(-1, size - 1)).clamp(min=0) ** 2


def sigmoid(z: Tensor) -> Tensor:
    """1/(1 + exp(-z_k))."""
    return torch.sigmoid(_checked(z))


def relu(z: Tensor) -> Tensor:
    """max(z_k, 0)."""
    return torch.relu(_checked(z))


def linear(z: Tensor) -> Tensor:
    """z_k itself: for scores <q, k> the output is <q, Σ_k k v_k>, a linear function of the query."""
    return _checked(z)


def nystrom(query: Tensor, key: Tensor, value: Tensor, landmarks: tuple[Tensor, Tensor] | int) -> Tensor:
    """Softmax attention through m landmarks, which costs n m + m p scores in place of n p (the Nyström method):

        softmax(Q K'ᵀ) · softmax(Q' K'ᵀ)⁺ · softmax(Q' Kᵀ) V

    Q is (n, r), K (p, r), V (p, d). `landmarks` are (Q', K'), m rows each, or m: the means of m consecutive parts of Q and K.

    *This is attention to m anchors.* It equals softmax(Q K'ᵀ) V' with the values V' = A⁺ g, where g = softmax(Q' Kᵀ) V is what
    full attention gives for the landmark queries and A = softmax(Q' K'ᵀ): the values with which m keys reproduce full attention
    at m queries, if A is regular.

    >>> s, anchors = torch.linspace(-1, 1, 200), torch.linspace(-1, 1, 64)
    >>> query, key = torch.stack([s, torch.ones(200)], 1), torch.stack([4 * anchors, -2 * anchors**2], 1)
    >>> full = softmax(query @ key.T) @ anchors.sin()[:, None]
    >>> bool((nystrom(query, key, anchors.sin()[:, None], 8) - full).abs().max() < 1e-3)
    True
    """
    matrices = query.ndim == key.ndim == value.ndim == 2
    if not matrices or query.shape[1] != key.shape[1] or len(key) != len(value):
        shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        raise InputError(f"query, key and value have the shapes {shapes}: give (n, r), (p, r) and (p, d)")
    if isinstance(landmarks, tuple):
        some_queries, some_keys = landmarks
    else:
        m = checked_count("landmarks", landmarks, 1, min(len(query), len(key)))
        parts = (torch.tensor_split(x, m) for x in (query, key))
        some_queries, some_keys = (torch.stack([part.mean(0) for part in x]) for x in parts)
    middle = pseudo_inverse(softmax(some_queries @ some_keys.T))
    found: Tensor = softmax(query @ some_keys.T) @ (middle @ (softmax(some_queries @ key.T) @ value))
    return found


def pseudo_inverse(matrix: Tensor) -> Tensor:
    """A⁺, where singular values below √u of the largest count as 0: smaller ones would multiply the rounding errors of g by more
    than 1/√u."""
    found: Tensor = torch.linalg.pinv(matrix, rtol=torch.finfo(matrix.dtype).eps ** 0.5)
    return found


def _checked(z: Tensor) -> Tensor:
    if not isinstance(z, Tensor) or not z.is_floating_point() or not z.ndim or not z.shape[-1]:
        given = f"{tuple(z.shape)} of {z.dtype}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"scores are a floating-point tensor (…, p) with p >= 1: got {given}")
    return z


def _shifted(z: Tensor) -> Tensor:
    """The scores minus the largest: the weights do not change, and no square overflows where it matters."""
    z = _checked(z)
    return z - z.amax(-1, keepdim=True)


def _counts(z: Tensor) -> Tensor:
    return torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
