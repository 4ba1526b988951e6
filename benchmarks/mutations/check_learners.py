"""Mutations of the checkers of learners and of literal networks."""

from __future__ import annotations

from mutations.mutation import Mutation

LEARNER = "tests/check/test_learner.py"
FORGED = "tests/check/test_literal_forged.py"
DESCENT = f"{LEARNER}::test_both_derivations_of_descent_agree_in_every_term"
NEWTON = f"{LEARNER}::test_both_derivations_of_newton_agree_in_every_term"
SETTINGS = f"{LEARNER}::test_settings_of_other_types_or_signs_are_refused"
ENCODES = f"{FORGED}::test_what_does_not_encode_the_source_is_not_proved"

CHECK_LEARNERS = [
    Mutation(
        "check_learner: series",
        "attnc/check/learner.py",
        "step = eta * (series + X * residual.error) + moved.error",
        "step = eta * X * residual.error + moved.error",
        "the checker takes the mean of layer C to be exact",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: residuals",
        "attnc/check/learner.py",
        "step = eta * (series + X * residual.error) + moved.error",
        "step = eta * series + moved.error",
        "the checker takes the residuals to be exact",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: rounding of the update",
        "attnc/check/learner.py",
        "step = eta * (series + X * residual.error) + moved.error",
        "step = eta * (series + X * residual.error)",
        "the checker takes the update of w to be exact",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: threshold",
        "attnc/check/learner.py",
        "step = step + arb(threshold.error) + unit",
        "step = step + unit",
        "the checker takes the head of the threshold to be exact",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: reading head",
        "attnc/check/learner.py",
        "return Tracked(u + off, off + arb(head.error)) if head.covers",
        "return Tracked(u + off, off) if head.covers",
        "the checker takes the reading head to be exact",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: activation head",
        "attnc/check/learner.py",
        "g = Tracked(arb(size), arb(head.error) + arb(float(steep[0])) * entering.error)",
        "g = Tracked(arb(size), arb(float(steep[0])) * entering.error)",
        "the checker takes the head of the activation to be exact",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: slope of the activation",
        "attnc/check/learner.py",
        "g = Tracked(arb(size), arb(head.error) + arb(float(steep[0])) * entering.error)",
        "g = Tracked(arb(size), arb(head.error))",
        "errors of w·x do not pass the activation",
        (DESCENT,),
    ),
    Mutation(
        "check_learner: domain of the activation",
        "attnc/check/learner.py",
        'if not (stays and claim.heads["activation"].covers(reach)):',
        "if not stays:",
        "exact descent may leave the interval on which the slope is known",
        (f"{LEARNER}::test_the_head_of_a_local_function_covers_what_exact_descent_reaches",),
    ),
    Mutation(
        "check_learner: step of newton",
        "attnc/check/learner.py",
        "rho = rho**2 + d * step.error * high",
        "rho = rho**2",
        "the checker takes every iteration to be exact",
        (NEWTON,),
    ),
    Mutation(
        "check_learner: b of newton",
        "attnc/check/learner.py",
        "last = do.scale(arb(d), last_read).error + d * P * b.error",
        "last = do.scale(arb(d), last_read).error",
        "the checker takes b to be exact",
        (NEWTON,),
    ),
    Mutation(
        "learner settings: signs",
        "attnc/records/learners.py",
        "for name, kind in types.items() if kind in (int, float)}",
        "for name, kind in types.items() if kind is int}",
        "a negative step size, ridge or start is accepted",
        (SETTINGS,),
    ),
    Mutation(
        "learner settings: intercept",
        "attnc/records/learners.py",
        'if facts["intercept"] and not (context.limits["x"] >= 1',
        'if facts["intercept"] and not (context.limits["x"] >= 0',
        "the column of ones may exceed the radius of x",
        (SETTINGS,),
    ),
    Mutation(
        "losses: slope on the whole line",
        "attnc/incontext/losses.py",
        "if self.local else LIPSCHITZ[f.name]",
        "if True else LIPSCHITZ[f.name]",
        "clip(5,6), flat near 0, is taken to be flat everywhere",
        (f"{LEARNER}::test_the_slope_of_a_function_is_that_of_the_whole_line",),
    ),
    Mutation(
        "learners: number of examples",
        "attnc/incontext/base.py",
        "if len(x) > EXAMPLES and",
        "if len(x) > 2 * EXAMPLES and",
        "a certificate for 1,000 examples seems to cover more",
        (f"{LEARNER}::test_more_examples_than_the_certificate_is_for",),
    ),
    Mutation(
        "symbolic: weights times inputs",
        "attnc/check/symbolic.py",
        "group = (rest[0], rest[2:])",
        "group = (rest[0], len(rest))",
        "of the products of one weight with several inputs, the largest counts alone",
        (f"{FORGED}::test_weights_times_different_inputs_add_up",),
    ),
    Mutation(
        "check_literal: inputs of the embedding",
        "attnc/check/literal.py",
        'and structure["embeddings"][0]["reads"] == [0]',
        "",
        "an embedding that joins the input twice is accepted",
        (ENCODES,),
    ),
    Mutation(
        "check_literal: start of the embedding",
        "attnc/check/literal.py",
        "len(start) in (1, len(rows))",
        "len(start) > 0",
        "the start of an embedding may add tokens",
        (ENCODES,),
    ),
    Mutation(
        "check_literal: columns of a softmax",
        "attnc/check/literal.py",
        "for c in range(self.width):\n            weights",
        "for c in range(max(max(token, default=0) for token in tokens) + 1):\n            weights",
        "softmax leaves coordinates that are 0 in all tokens at 0",
        (ENCODES,),
    ),
    Mutation(
        "check_literal: names of registers",
        "attnc/check/literal.py",
        " and len(set(names)) == len(names)",
        "",
        "a register name may stand for two places",
        (ENCODES,),
    ),
    Mutation(
        "check_literal: axis of attention",
        "attnc/check/literal.py",
        'self._require(fits and step["axis"] == -1,',
        "self._require(fits,",
        "attention whose softmax runs over the queries is accepted",
        (ENCODES,),
    ),
    Mutation(
        "certificate: sum of the terms",
        "attnc/records/certificate.py",
        "if self.proved and not self.bound <= total:",
        "if False:",
        "a bound may exceed the sum of its terms",
        ("tests/records/test_certificate.py::test_the_terms_of_a_proved_bound_add_up_to_it",),
    ),
]
