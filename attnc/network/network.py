"""A network of affine maps and softmax attention, and nothing else."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from attnc.arguments import checked_engine, checked_strict
from attnc.arithmetic import loose_products
from attnc.domain import Box, Tokens
from attnc.errors import InputError
from attnc.network.altered import CertifiedModule, as_made, warn_if_changed, why_changed
from attnc.network.attend import AttendLayer
from attnc.network.certified import Certified, certified_network
from attnc.network.describe import Description, described, error_of, proved_word, step_name
from attnc.network.engines import CERTIFIED
from attnc.network.head import Head
from attnc.network.layer import (
    AffineLayer,
    CombineLayer,
    EmbedLayer,
    LayerModule,
    LookupLayer,
    MixLayer,
    ReshapeLayer,
    ScaleLayer,
)  # fmt: skip
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.literal.forms import literal_form
from attnc.network.literal.layers import literal_layers
from attnc.network.norm import NormLayer
from attnc.network.pointwise import Pointwise
from attnc.network.predict import predictions, probabilities
from attnc.network.product import ProductLayer
from attnc.network.running import check_domain, check_tensor, in_chunks, precise
from attnc.program.program import Program
from attnc.records.certificate import INTEGERS, Certificate, Status
from attnc.records.fields import DAMAGE
from attnc.records.layers import NetworkNumbers, heads_of
from attnc.records.presentation import Presentation
from attnc.records.record import Record, write

_CHUNK = 1 << 21  # numbers of the widest value held at once
Stage = LayerModule | Pointwise | ProductLayer


@as_made
class Network(CertifiedModule):
    """What `attnc.compile` makes: stages of affine maps and attention that compute the program within its certificate.

    `engine` says how attention is executed: "softmax" or "sdpa" (torch's scaled_dot_product_attention). The certificate covers
    both. `strict` controls inputs outside its domain: None warns once, True raises, False does nothing; under torch.compile,
    torch.export and other tracing nothing is checked.

    `certificate` states the error: proved, or measured at random inputs. `form` and `layout` select the construction that
    `as_self_attention` writes, `theorem` is the theorem it belongs to, `notes` describe how the network was made.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        program: Program,
        certificate: Certificate | None = None,
        engine: str = "softmax",
        strict: bool | None = None,
        presentation: Presentation | None = None,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.program = program
        self.certificate = certificate or Certificate.unknown("network", self._dtype())
        shown = presentation or Presentation()
        self.form, self.layout = shown.form, shown.layout
        self.theorem, self.notes = shown.theorem, shown.notes
        self.task, self.classes = shown.task, shown.classes
        self.engine, self.strict = checked_engine(engine, CERTIFIED), checked_strict(strict)

    @precise
    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        """The outputs for a batch (…, *shape). `strict` overrides the network's own for this call."""
        self._check_input(x)
        if self.certificate.status is not Status.UNKNOWN:
            check_domain(self, x, strict, self.domain)
        flat, last = x.reshape(-1, *self.program.shape), len(self.program.steps)
        anchors = [selection.anchors for selection in self.selections]
        anchors += [self._attended(stage) for stage in self.stages if isinstance(stage, AttendLayer)]
        widest = max(*map(math.prod, self.program.shapes), *anchors)
        out = in_chunks(lambda part: self._run(part)[last], _CHUNK // widest, flat)
        return out.reshape(*x.shape[: x.ndim - len(self.program.shape)], *self.program.shapes[-1])

    @precise
    def attention(self, x: Tensor) -> dict[str, Tensor]:
        """The attention weights by layer or group of neurons: (…, neurons, anchors), or (…, neurons, heads, anchors) where a
        neuron has several heads. Of a lookup: (…, anchors). Between tokens: (…, heads, n, m)."""
        self._check_input(x)
        values = self._run(x.reshape(-1, *self.program.shape), keep=True)
        found = {s.name: s.weights(values[s.inputs[0]]) for s in self.selections}
        for layer in self.layers:
            for g, name in enumerate(layer.names):
                found[name] = layer.weights(values[layer.inputs[0]], g)
        for stage in self.stages:
            if isinstance(stage, AttendLayer):
                found[step_name(self, stage.value)] = stage.weights(*(values[i] for i in stage.inputs[:2]))
        lead = x.shape[: x.ndim - len(self.program.shape)]
        return {name: weights.reshape(*lead, *weights.shape[1:]) for name, weights in found.items()}

    def certified(self, x: Tensor | NDArray[Any]) -> Certified:
        """net(x), and a bound of |net(x) - program(x)| for these very inputs, as a float64 tensor that is rounded up. A numpy
        array must hold numbers that the dtype of the network represents: x.astype(np.float32) rounds them.

        The program runs in ball arithmetic, which takes some microseconds for each neuron and input. Nothing is assumed about the
        machine, and the bound exceeds the error by less than one part in 10^9. A function that is known at points has wide balls,
        and the bound is the distance to the farthest function with these values, which may exceed the certificate's.
        The network must have a proved certificate, and x must lie in its box.

        >>> import torch
        >>> from attnc.compiler import compile
        >>> from attnc.domain import Box
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
        >>> net = compile(model, domain=Box(-1, 1, shape=(4,)), eps=1e-3)
        >>> y, bound = net.certified(torch.rand(3, 4))
        >>> bound.shape, bool((bound <= net.certificate.bound).all())
        (torch.Size([3, 2]), True)
        """
        return certified_network(self, x)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """What the compiled estimator predicts, for the rows of an array: classes of a classifier, numbers of a regressor; for
        any other network, its outputs. X is converted to the dtype of the network; the certificate holds for the converted X.

        >>> import attnc
        >>> from sklearn.neural_network import MLPClassifier
        >>> X, y = np.array([[0.0], [0.2], [0.8], [1.0]]), np.array(["low", "low", "high", "high"])
        >>> model = MLPClassifier((8,), solver="lbfgs", random_state=0).fit(X, y)
        >>> net = attnc.compile(model, domain=attnc.Box.from_data(X), eps=1e-3)
        >>> net.predict(X).tolist(), net.predict_proba(X).shape
        (['low', 'low', 'high', 'high'], (4, 2))
        """
        return predictions(self, X)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probabilities of the classes, (rows, classes), of a compiled classifier: its softmax, or the logistic function for
        two classes and for labels, evaluated on the outputs of the network, which are the logits."""
        return probabilities(self, X)

    @property
    def layers(self) -> list[Pointwise]:
        """The layers of attention, in order."""
        return [stage for stage in self.stages if isinstance(stage, Pointwise)]

    @property
    def selections(self) -> list[LookupLayer]:
        """The heads whose anchors are points of the whole input."""
        return [stage for stage in self.stages if isinstance(stage, LookupLayer)]

    @property
    def domain(self) -> Box:
        """The box for which the certificate holds."""
        return self.certificate.box

    @property
    def presentation(self) -> Presentation:
        """Form, layout, theorem and notes."""
        return Presentation(
            self.form, self.layout, self.theorem, tuple(self.notes), self.task, tuple(self.classes)
        )

    def numbers(self) -> NetworkNumbers:
        """The numbers as they are stored now."""
        return NetworkNumbers(tuple(cast(Stage, stage).numbers() for stage in self.stages), self._dtype())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write numbers, program and certificate to a safetensors file; `attnc.load` reads it back. Warns
        (`attnc.errors.CertificateWarning`) if numbers have changed, so that the certificate does not apply to them."""
        warn_if_changed(self, self.certificate)
        write(path, self.record())

    def record(self) -> Record:
        """Numbers, certificate, program and presentation, as a file holds them."""
        return Record(self.numbers(), self.certificate, self.program, self.presentation)

    def as_self_attention(self, n: int | None = None) -> SelfAttentionNetwork:
        """The same network as plain self-attention over [data tokens; anchors]: W_Q, W_K, W_V, W_O for every head, no mask.

        A network with the form of a theorem has exactly the layers of the theorem. A network of inputs (d,) takes n tokens if n
        is given: (…, n, d).

        >>> import attnc, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
        >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3)
        >>> literal = net.as_self_attention(3)
        >>> x = torch.rand(5, 3, 4)
        >>> torch.allclose(literal(x), net(x), atol=1e-5), literal.layers[0].W_Q.shape
        (True, torch.Size([8, 13, 4]))
        """
        if self.form == "layers":
            if self.selections:
                raise InputError("a lookup has the forms 'two-layer' and 'attention-softmax': set net.form")
            return literal_layers(self, n)
        if n is not None:
            raise InputError(f"form {self.form!r} has the tokens of {self.program.shape}: leave n out")
        return literal_form(self)

    def describe(self) -> Description:
        """A table: layer, function, heads, anchors, interval, error in, error out."""
        return described(self)

    def why_not_certified(self) -> str | None:
        """None if a proved certificate applies to the network as it is now, else the reason."""
        if not self.certificate.proved:
            return f"its error is {self.certificate.status}, not proved"
        reason = self.why_changed() or loose_products(self.certificate.dtype)
        if reason is None and self.program.digest() != self.certificate.facts["program"]:
            return "its weights or steps are not those that were certified"
        return reason

    def why_changed(self) -> str | None:
        """None if the certificate, proved or measured, is about the network as it is now, else the reason."""
        if self.certificate.status is Status.UNKNOWN:
            return "its error is neither proved nor measured"
        if type(self.stages) is not nn.ModuleList:
            return f"its stages are a {type(self.stages).__name__}: the certificate is for an nn.ModuleList"
        try:
            checked_engine(self.engine, CERTIFIED)
        except DAMAGE as problem:  # an InputError too
            return str(problem)
        return why_changed(self, self.certificate)

    def _run(self, x: Tensor, keep: bool = False) -> dict[int, Tensor]:
        """The values by their number in the program; each is freed after its last reader, unless kept."""
        last_read = {value: i for i, stage in enumerate(self.stages) for value in cast(Stage, stage).inputs}
        values: dict[int, Tensor] = {0: x}
        for i, module in enumerate(self.stages):
            stage = cast(Stage, module)
            given = [values[v] for v in stage.inputs]
            made = stage(*given, self.engine, strict=False) if isinstance(stage, Pointwise) else stage(*given)
            values[stage.value] = made
            if not keep:
                values = {v: t for v, t in values.items() if last_read.get(v, -1) > i or v == stage.value}
        return values

    def _attended(self, stage: AttendLayer) -> int:
        """How many weights a layer of attention between tokens has."""
        q, k, _ = (self.program.shapes[i] for i in stage.inputs)
        return int(stage.settings["split"][0] * q[0] * k[0])

    def _dtype(self) -> str:
        dtypes = {str(p.dtype).removeprefix("torch.") for p in self.parameters()}
        if len(dtypes) != 1 or not dtypes <= {"float32", "float64"}:
            raise InputError(f"the network's tensors are {sorted(dtypes)}: expected float32 or float64")
        return dtypes.pop()

    def _check_input(self, x: Tensor) -> None:
        dtype = next(self.parameters()).dtype
        ids = isinstance(self.certificate.holds_for, Tokens) and isinstance(x, Tensor) and x.dtype in INTEGERS
        check_tensor("the input of a network", x.to(dtype) if ids else x, dtype, self.program.shape)

    def _repr_html_(self) -> str:
        from attnc.network.cards import network_card

        return network_card(self)

    def extra_repr(self) -> str:
        known = self.certificate
        if known.status is Status.UNKNOWN:
            return "error=unknown"
        return f"domain={known.holds_for}, dtype={known.dtype}, error={error_of(self, proved_word(self))}"


_MODULES: dict[str, type[LayerModule]] = {
    "affine": AffineLayer,
    "batch_norm": ScaleLayer,
    "lookup": LookupLayer,
    "combine": CombineLayer,
    "reshape": ReshapeLayer,
    "attend": AttendLayer,
    "embed": EmbedLayer,
    "mix": MixLayer,
    "norm": NormLayer,
    "scale": ScaleLayer,
}


def rebuilt(record: Record, engine: str = "softmax") -> Network:
    """The network that a record describes; heads get the certificates of the claim of their layer."""
    (program, numbers), known, stages = record.network, record.certificate.claims, list[Stage]()
    claims = {} if known is None else {claim.facts["value"]: claim for claim in known.parts("layer")}
    for layer in numbers.layers:
        if layer.kind == "pointwise":
            claim = claims[layer.value]
            pairs = zip(heads_of(layer), claim.children, strict=True)
            heads = [(neurons, Head(head, str(c.facts["design"]), c)) for (neurons, head), c in pairs]
            stages.append(
                Pointwise(heads, "softmax", name=claim.name, inputs=layer.inputs, value=layer.value)
            )
        elif layer.kind == "product":
            stages.append(ProductLayer(layer, *claims[layer.value].children))
        else:
            stages.append(_MODULES[layer.kind](layer))
    return Network(stages, program, record.certificate, engine, presentation=record.presentation)
