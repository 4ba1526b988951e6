"""What is known of the error of a head or a network: proved, measured, or nothing. Every plot reads it here."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnc.errors import InputError
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.plot.canvas import VERMILION
from attnc.records.certificate import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LONGEST = 100  # characters of a line


@dataclass(frozen=True)
class KnownError:
    """A bound that is proved, or the largest error measured; None if neither holds for the numbers as they are."""

    value: float | None
    proved: bool
    text: str  # one line for a title

    def draw(self, ax: Axes) -> None:
        """A solid line at the proved bound, or a dashed line at the largest measured error."""
        if self.value is not None:
            proved, measured = (
                f"proved bound {self.value:.4g}",
                f"largest measured {self.value:.3g}, not proved",
            )
            style, label = ("-", proved) if self.proved else ("--", measured)
            ax.axhline(self.value, color=VERMILION, linewidth=1.4, linestyle=style, label=label)


def known_error(model: Head | Network) -> KnownError:
    """The error of `model`, and whether it is proved."""
    reason = model.why_not_certified()
    certificate = model.certificate
    if reason is None:
        bound = certificate.bound
        return KnownError(bound, True, f"error at most {bound:.4g}, proved")
    if certificate.status is Status.MEASURED:
        reason = model.why_changed() if isinstance(model, Network) else None
        if reason is None:
            error, points = certificate.bound, certificate.facts["points"]
            return KnownError(error, False, f"error {error:.3g} measured at {points:,} points, not proved")
    return KnownError(None, False, shorten(f"not certified: {reason}", _LONGEST, placeholder=" …"))


def worst_input(net: Network) -> Tensor:
    """The certificate's witness, or the input of the largest measured error."""
    known = net.certificate.witness
    if known is None:
        raise InputError("this network has no certificate and no measurement: give the inputs to draw, x=...")
    point = torch.tensor(known.input, dtype=torch.float64).reshape(net.program.shape)
    parameter = next(net.parameters())
    return point.to(parameter.device, parameter.dtype)
