"""Mutations of graphs that leave torch, and of the checks of exported files."""

from __future__ import annotations

from mutations.mutation import Mutation

RUNNING = "attnc/network/running.py"
ONNX = "attnc/exporters/onnx.py"
GRAPH = "attnc/exporters/onnx_graph.py"
WRONG = "tests/exporters/test_onnx.py::test_a_file_that_computes_something_else_is_not_kept"

EXPORTS = [
    Mutation(
        "graphs: chunks",
        RUNNING,
        "    if is_traced():\n        return run(*tensors)\n",
        "",
        "a graph has as many chunks as the input that it was traced with",
        ("tests/network/test_traced.py::test_a_graph_has_no_chunks",),
    ),
    Mutation(
        "graphs: constants",
        RUNNING,
        "    if not is_traced():\n        return number\n",
        "    return number\n",
        "constants are Python numbers, which torch.onnx rounds to float32",
        (
            "tests/network/test_traced.py::test_constants_of_a_graph_are_tensors_with_an_axis",
            "tests/exporters/test_onnx.py::test_a_learner_takes_every_context",
        ),
    ),
    Mutation(
        "onnx: comparison",
        ONNX,
        "            if not difference <= most:\n",
        "            if False:\n",
        "a file is kept whatever it computes",
        (WRONG,),
    ),
    Mutation(
        "onnx: purity",
        ONNX,
        '        if engine == "softmax":\n            _check_pure(model)\n',
        "",
        "a file may have any nonlinear operation",
        ("tests/exporters/test_onnx.py::test_other_nonlinear_operations_are_refused_by_name",),
    ),
    Mutation(
        "onnx: certificate of a changed module",
        "attnc/exporters/subjects.py",
        "    if not unknown and (reason := ask()) is not None:\n",
        "    if False:\n        reason = ''\n",
        "a changed head is exported with its certificate",
        ("tests/exporters/test_onnx.py::test_a_changed_module_is_not_exported_with_its_certificate",),
    ),
    Mutation(
        "onnx graph: products",
        GRAPH,
        "        return len(factors) == 2 and (not weights.isdisjoint(factors) or self._are_scores(node))\n",
        "        return True\n",
        "products of values count as attention",
        ("tests/exporters/test_onnx_graph.py::test_others_are_named",),
    ),
    Mutation(
        "onnx graph: guards",
        GRAPH,
        "            if zero and all(",
        "            if all(",
        "any choice by IsNaN counts as part of softmax",
        ("tests/exporters/test_onnx_graph.py::test_others_are_named",),
    ),
]
