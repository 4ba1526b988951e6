"""Mutations of the modules that run: precision, domains, alterations, and what they keep beside their numbers."""

from __future__ import annotations

from mutations.mutation import Mutation

RUNNING = "attnc/network/running.py"
INSIDE = "attnc/network/inside.py"
ALTERED = "attnc/network/altered.py"
HEAD = "attnc/network/head.py"
POINTWISE = "attnc/network/pointwise.py"
WINDOW = "attnc/network/window.py"
PRODUCT = "attnc/network/product.py"
GATED_BLOCK = "attnc/network/gated_block.py"

AUTOCAST = "tests/network/test_running.py::test_autocast_changes_no_bit"
CAST = "tests/network/test_running.py::test_a_cast_to_less_keeps_the_numbers"
NOT_CERTIFIED = "tests/network/test_altered.py::test_what_was_changed_is_not_certified"
SURROUNDINGS = "tests/network/test_altered.py::test_surroundings_are_seen"
STRICT = "tests/network/test_inside.py::test_strict_raises_and_lax_is_silent"
ONCE = "tests/network/test_inside.py::test_one_warning_for_each_module"

BORDERS_RUNNING = [
    Mutation(
        "running: autocast",
        RUNNING,
        "with torch.autocast(kind, enabled=False):",
        "with torch.autocast(kind, enabled=True):",
        "engines run under autocast",
        (AUTOCAST,),
    ),
    Mutation(
        "running: half precision",
        RUNNING,
        "super()._apply((lambda t: t.to(like.device)) if less else fn, recurse)",
        "super()._apply(fn, recurse)",
        "numbers are rounded to 16 bits",
        (CAST,),
    ),
    Mutation(
        "running: a cast that is forgotten",
        RUNNING,
        "self._cast_to = still if is_less(still) else None",
        "self._cast_to = None",
        "after .cpu() a module that was cast counts as one that was not",
        ("tests/network/test_running.py::test_a_cast_to_less_is_never_certified",),
    ),
    Mutation(
        "inside: NaN",
        INSIDE,
        "    if domain.lo <= least and most <= domain.hi:",
        "    if not (least < domain.lo or most > domain.hi):",
        "NaN lies in every interval",
        (STRICT,),
    ),
    Mutation(
        "inside: upper end",
        INSIDE,
        "    if domain.lo <= least and most <= domain.hi:",
        "    if domain.lo <= least:",
        "inputs above an interval lie in it",
        (STRICT,),
    ),
    Mutation(
        "inside: strict",
        INSIDE,
        "    if strict:\n",
        "    if False:\n",
        "strict=True warns",
        (STRICT,),
    ),
    Mutation(
        "inside: strict after a warning",
        INSIDE,
        '(strict is None and (module in _warned or x.device.type != "cpu")):',
        'module in _warned or (strict is None and x.device.type != "cpu"):',
        "strict=True says nothing once there was a warning",
        ("tests/network/test_inside.py::test_strict_raises_after_a_warning_too",),
    ),
    Mutation(
        "inside: one warning",
        INSIDE,
        "    _warned.add(module)\n",
        "",
        "every call warns",
        (ONCE,),
    ),
    Mutation(
        "inside: a corner of a box",
        INSIDE,
        "if float(box.lo.max()) <= float(x.amin()) and float(x.amax()) <= float(box.hi.min()):",
        "if float(box.lo.min()) <= float(x.amin()) and float(x.amax()) <= float(box.hi.max()):",
        "the smallest cube around a box is the box",
        ("tests/network/test_inside.py::test_a_box_that_is_not_the_same_everywhere",),
    ),
    Mutation(
        "inside: traces",
        RUNNING,
        "if torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch():",
        "if False:",
        "the check of the domain is part of traced graphs",
        ("tests/network/test_inside.py::test_nothing_is_checked_in_a_graph",),
    ),
    Mutation(
        "altered: hooks",
        ALTERED,
        "    if part._forward_hooks:\n",
        "    if False:\n",
        "a hook leaves a module certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "altered: hooks in front",
        ALTERED,
        "    if part._forward_pre_hooks:\n",
        "    if False:\n",
        "a pre-hook leaves a module certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "altered: replaced methods",
        ALTERED,
        "        if _is_code(getattr(type(part), name, None)):",
        "        if False:",
        "a replaced method leaves a module certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "altered: replaced methods of a class",
        ALTERED,
        "            if old is not new and (",
        "            if False and (",
        "a replaced method of a class leaves its modules certified",
        ("tests/network/test_altered.py::test_a_method_of_a_class_that_was_replaced_is_seen",),
    ),
    Mutation(
        "altered: subclasses",
        ALTERED,
        "    if type(part) not in _made:\n",
        "    if False:\n",
        "a module of another class is certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "altered: hidden attributes",
        ALTERED,
        'return f"has an attribute {name} in the place of a registered part"',
        "pass",
        "an attribute may hide a parameter",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "altered: tensors of other classes",
        ALTERED,
        "        if type(tensor) not in (Tensor, nn.Parameter):",
        "        if False:",
        "a tensor that computes something else is certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "altered: casts",
        ALTERED,
        "if isinstance(part, PreciseModule) and part._cast_to is not None:",
        "if False:",
        "a module that was cast is certified",
        ("tests/network/test_running.py::test_a_cast_to_less_is_never_certified",),
    ),
    Mutation(
        "altered: autocast",
        ALTERED,
        "    if any(autocast_is_on(kind) for kind in kinds):",
        "    if False:",
        "a module under autocast is certified",
        (SURROUNDINGS,),
    ),
    Mutation(
        "altered: global hooks",
        ALTERED,
        "    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:",
        "    if False:",
        "global hooks leave a module certified",
        (SURROUNDINGS,),
    ),
    Mutation(
        "altered: modes",
        ALTERED,
        "    if modes or torch._C._len_torch_dispatch_stack():",
        "    if False:",
        "a mode that sees every operation leaves a module certified",
        (SURROUNDINGS,),
    ),
    Mutation(
        "altered: compiled in place",
        ALTERED,
        "    if part._compiled_call_impl is not None:",
        "    if False:",
        "a module that was compiled in place is certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "head: changed numbers",
        ALTERED,
        "changed = sorted(name for name in digests.keys() | known.keys() if digests.get(name) != known.get(name))",
        "changed: list[str] = []",
        "numbers that were edited are certified",
        (NOT_CERTIFIED,),
    ),
    Mutation(
        "head: gated numbers",
        HEAD,
        "return can_look(self.value) and bool(self.value[..., 0].any())",
        'return self.__dict__.setdefault("_gated", can_look(self.value) and bool(self.value[..., 0].any()))',
        "whether a token attends to itself is remembered",
        (
            "tests/network/test_running.py::test_a_head_with_the_numbers_of_another_computes_what_the_other_does",
        ),
    ),
    Mutation(
        "head: traces of gated heads",
        HEAD,
        "if not can_look(self.value) or self.is_gated:",
        "if self.is_gated:",
        "a graph of a gated head drops the token's own term",
        ("tests/network/test_running.py::test_traced_graphs_hold_for_gated_numbers_too",),
    ),
    Mutation(
        "pointwise: places of the neurons",
        POINTWISE,
        "return torch.empty_like(together).index_copy(-1, order, together)",
        "return together.index_select(-1, order)",
        "neurons are put back by the permutation instead of its inverse",
        ("tests/network/test_pointwise.py::test_every_neuron_has_its_own_head",),
    ),
    Mutation(
        "pointwise: wiring",
        POINTWISE,
        "return x if neurons is None else x.index_select(-1, neurons)",
        "return x if neurons is None else x[..., : len(neurons)]",
        "every group reads the first neurons",
        ("tests/network/test_pointwise.py::test_every_neuron_has_its_own_head",),
    ),
    Mutation(
        "pointwise: one window of several",
        POINTWISE,
        "if windows[0] is not None and all(window == windows[0] for window in windows[1:]):",
        "if windows[0] is not None:",
        "the window of the first group runs for all",
        ("tests/network/test_pointwise.py::test_one_window_runs_once_for_all_neurons",),
    ),
    Mutation(
        "pointwise: stale windows",
        WINDOW,
        "if head._derived is None or not head._derived.holds(tensors):",
        "if head._derived is None:",
        "a window outlives the numbers it was derived from",
        ("tests/network/test_pointwise.py::test_the_window_follows_the_numbers",),
    ),
    Mutation(
        "pointwise: neurons named twice",
        POINTWISE,
        'if named.dtype.kind != "i" or not np.array_equal(np.sort(named), np.arange(len(named))):',
        'if named.dtype.kind != "i":',
        "a neuron may have two heads and another none",
        ("tests/network/test_running.py::test_neurons_that_change_places_change_places",),
    ),
    Mutation(
        "pointwise: domain",
        POINTWISE,
        "check_domain(self, x, strict, partial(_outside, groups))",
        "pass",
        "activations do not check their domain",
        (STRICT,),
    ),
    Mutation(
        "product: factors",
        PRODUCT,
        "powers = torch.stack([scale, -scale, -radius, 2 * radius])",
        "powers = torch.stack([scale, -scale, -radius, radius])",
        "squares are scaled back by ρ instead of ρ²",
        ("tests/network/test_product.py::test_products_are_exact_up_to_the_square_head",),
    ),
    Mutation(
        "gated block: autocast",
        GATED_BLOCK,
        "        if not autocast_is_on(x.device.type):",
        "        if True:",
        "the maps of a gated block run under autocast",
        (
            AUTOCAST,
            "tests/network/test_running.py::test_a_gated_block_takes_what_autocast_makes_of_its_input",
        ),
    ),
    Mutation(
        "gated block: roles",
        GATED_BLOCK,
        "        first, up, second = (self.get_submodule(name) for name in self.roles)",
        "        up, first, second = (self.get_submodule(name) for name in self.roles)",
        "the map of the activation and the other one are exchanged",
        ("tests/network/test_product.py::test_the_block_is_the_original",),
    ),
    Mutation(
        "product: square",
        PRODUCT,
        'if len(known) != 1 or known[0].certificate.facts.get("function") != "square":',
        "if len(known) != 1:",
        "a head of another function squares",
        (
            "tests/network/test_altered.py::test_a_head_in_the_place_of_another_is_seen_though_it_is_certified",
        ),
    ),
]
